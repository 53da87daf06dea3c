"""`python -m kiln_diffusion` runs the program where its folder is not in PATH."""

import os
import subprocess
import sys

from kiln_diffusion import find_program

command = [find_program(), *sys.argv[1:]]
if sys.platform == "win32":
    sys.exit(subprocess.call(command))  # Windows cannot replace a process
os.execv(command[0], command)
