"""Where the kernel puts new connections, of the sockets that listen together on a port (``SO_REUSEPORT``).

By itself it spreads them over all, also over one whose process stands still. A classic BPF program at the group says
which ones get some (socket(7), ``SO_ATTACH_REUSEPORT_CBPF``); any process that holds one of the sockets may attach it.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

_ATTACH: Final = 51
"""SO_ATTACH_REUSEPORT_CBPF"""
_DETACH: Final = 68
"""SO_DETACH_REUSEPORT_BPF"""
_LOAD, _MODULO, _IF_EQUAL, _RETURN = 0x20, 0x94, 0x15, 0x06
"""LD W ABS; ALU MOD K; JMP JEQ K; RET K (linux/bpf_common.h)"""
_RANDOM: Final = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: a number by chance."""


def program(places: Sequence[int]) -> bytes:
    """What chooses one of these places by chance, each as likely as the others."""
    steps = [(_LOAD, 0, 0, _RANDOM), (_MODULO, 0, 0, len(places))]
    for number, place in enumerate(places):
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, place)]
    steps.append((_RETURN, 0, 0, places[0]))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def steer(group: Sequence[socket.socket], places: Sequence[int]) -> None:
    """Let the sockets at these places get new connections; those that wait at the others stay there.

    Where the kernel takes no such program, it spreads them over all, as it does by itself.

    Args:
        group: all that listen on the port, in the order in which they began to.
        places: in the group. All of them, or none: nobody is chosen.
    """
    try:
        if 0 < len(places) < len(group):
            steps = ctypes.create_string_buffer(code := program(places), len(code))
            filters = struct.pack("HL", len(code) // 8, ctypes.addressof(steps))
            group[0].setsockopt(socket.SOL_SOCKET, _ATTACH, filters)
        else:
            group[0].setsockopt(socket.SOL_SOCKET, _DETACH, 0)
    except OSError as error:  # there was none to detach, or this kernel has no such programs
        log.debug("new connections are spread by the kernel alone: %s", error)
