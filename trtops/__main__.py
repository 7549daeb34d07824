"""``python -m trtops``: the same as the command ``trtops``."""

from trtops.cli.main import run

if __name__ == "__main__":
    run()
