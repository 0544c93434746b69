"""What the tests start in place of ``python`` and of console scripts: asks server.py to run the program.

``python -ISE client.py FOLDER PYTHON NAME ARGUMENT...``: FOLDER is the server's; NAME is python or a script beside
PYTHON. Those with options of the interpreter are processes of their own.
"""

import array
import marshal
import os
import signal
import struct
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket  # the module around it takes longer than all the rest

NEW_PROCESS = -1000  # as in server.py
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def run(folder, argv):
    """The exit status of the program, negative for a signal; NEW_PROCESS if it was not started."""
    ignored = [int(number) for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    content = marshal.dumps((argv, os.getcwd(), dict(os.environ), ignored))
    connection = socket(AF_UNIX)
    connection.connect(f"{folder}/socket")
    connection.sendmsg([struct.pack("<q", len(content))], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    connection.sendall(content)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    answer = connection.recv(8)
    return struct.unpack("<q", answer)[0] if answer else sys.exit(f"the tests' server has ended: {folder}/log")


folder, python, name, *arguments = sys.argv[1:]
argv = [*([] if name.startswith("python") else [os.path.join(os.path.dirname(python), name)]), *arguments]
known = argv and (argv[0] in ("-m", "-c") or not argv[0].startswith("-"))
status = NEW_PROCESS if not known else run(folder, argv)
if status == NEW_PROCESS:
    os.execv(python, [python, *argv])
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
