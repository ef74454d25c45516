"""Blanks the names of functions in a Go program, of which only stack traces tell: python3 blank.py PROGRAM RESULT

They are a tenth of a packed Kubernetes. Those of the runtime stay, because it looks for some of them. The table is `pclntab` as it has
been since Go 1.18; anything else is left as it is.
"""

import struct
import subprocess
import sys

# Of Go 1.18 and of Go 1.20: the same in what is read here.
MAGICS = (0xFFFFFFF0, 0xFFFFFFF1)
KEPT = (b"runtime", b"internal/runtime", b"main.", b"reflect.")

source, result = sys.argv[1:]
program = bytearray(open(source, "rb").read())
sections = subprocess.check_output(["readelf", "-SW", source], text=True).splitlines()
found = [line.split("]", 1)[1].split() for line in sections if ".gopclntab" in line]
if found:
    start = int(found[0][3], 16)
    # Magic, two zeros, the quantum and the size of a pointer; then 8 numbers, of which the fourth and fifth say where the names are.
    if struct.unpack_from("<I", program, start)[0] in MAGICS:
        numbers = struct.unpack_from("<8Q", program, start + 8)
        at, end = start + numbers[3], start + numbers[4]
        while at < end:
            after = program.index(b"\0", at)
            if not program.startswith(KEPT, at):
                program[at:after] = bytes(after - at)
            at = after + 1
open(result, "wb").write(program)
