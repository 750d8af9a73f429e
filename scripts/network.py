"""Nodes in network namespaces, so that they can be cut off from each other while clients reach all of them. Needs Linux, root, ip, nft."""

import os
import subprocess


def run(*command):
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise OSError(f"{' '.join(command)}: {ran.stderr.strip()}")


class Network:
    """A bridge with a namespace per node. The caller's own namespace reaches every node, whatever is cut."""

    def __init__(self, count):
        self.count = count
        # Names of interfaces have at most 15 bytes.
        self.name = f"kvn{os.getpid()}"
        self.subnet = f"10.{os.getpid() >> 8 & 0x7F}.{os.getpid() & 0xFF}"
        self.is_cut = set()
        try:
            self.build()
        except OSError:
            self.remove()
            raise

    def build(self):
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "addr", "add", f"{self.subnet}.254/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")
        for node in range(self.count):
            space = self.space(node)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", space, "master", self.name)
            run("ip", "link", "set", space, "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        # Where nft is missing, that shows now.
        self.cut(0, [1])
        self.heal()

    def space(self, node):
        return f"{self.name}-{node}"

    def address(self, node):
        return f"{self.subnet}.{node + 1}"

    def prefix(self, node):
        """The words before a program that make it run as this node."""
        return ["ip", "netns", "exec", self.space(node)]

    def cut(self, node, others, is_sent=True, is_received=True):
        """Drops packets from `node` to `others`, from them to it, or both, until heal()."""
        self.is_cut.add(node)
        addresses = ", ".join(self.address(other) for other in others)
        script = "add table inet cut\n"
        for wanted, hook, side in [(is_sent, "output", "daddr"), (is_received, "input", "saddr")]:
            if wanted:
                script += f"add chain inet cut {hook} {{ type filter hook {hook} priority 0 ; }}\n"
                script += f"add rule inet cut {hook} ip {side} {{ {addresses} }} drop\n"
        run(*self.prefix(node), "nft", script)

    def heal(self):
        """Removes all cuts."""
        for node in self.is_cut:
            run(*self.prefix(node), "nft", "delete table inet cut")
        self.is_cut.clear()

    def remove(self):
        """Removes all parts; one that was not made is no failure."""
        for node in range(self.count):
            # A namespace outlives its name while the kernel has connections in it, so the interface is removed by itself.
            for command in (["link", "del", self.space(node)], ["netns", "del", self.space(node)]):
                subprocess.run(["ip", *command], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", self.name], stderr=subprocess.DEVNULL, check=False)
