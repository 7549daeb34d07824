"""One value in, text out."""
