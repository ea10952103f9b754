# SPDX-License-Identifier: MIT
"""The machine's name in a table of results."""
import platform


def processor():
    """As `deeppcr info` names it: virtual machines call processors of several generations by one name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            cpu = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    except OSError:
        cpu = {}
    if "model name" not in cpu:
        return platform.processor() or platform.machine()
    return f"{cpu['model name']} (family {cpu.get('cpu family', '?')} model {cpu.get('model', '?')})"
