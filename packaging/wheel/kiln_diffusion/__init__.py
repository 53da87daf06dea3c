"""The program `kiln`. The Python module `kiln` is another package: kiln-diffusion-python."""

import os
import sys
import sysconfig


def find_program() -> str:
    """The path of the program that this package installed."""
    name = "kiln.exe" if sys.platform == "win32" else "kiln"
    user = sysconfig.get_preferred_scheme("user")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", scheme=user)]
    # `pip install --target` has its scripts in a folder beside the packages.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    for folder in folders:
        program = os.path.join(folder, name)
        if os.path.isfile(program):
            return program
    raise FileNotFoundError(f"{name} is in none of {', '.join(folders)}")
