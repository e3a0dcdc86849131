"""Enforces the NetworkPolicies of the test cluster: policies.py API-SERVER FOLDER-OF-KEYS RANGE-OF-PODS.

It follows pods, namespaces and policies, and keeps one nftables table. Connections from the node itself, such as
probes, are open, and so are replies. A pod that no policy selects is open, too. Until the program knows the address of
a pod, which takes up to a second, the pod reaches only DNS. It needs only Python's standard library and nft.
"""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

TABLE = "mops-testcluster"  # lib.sh removes it, too
NO_TABLE = f"table ip {TABLE}\ndelete table ip {TABLE}\n"  # also if there is none
KINDS = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
}
Object = dict[str, Any]
seen: dict[str, dict[str, Object]] = {}  # by kind and uid
changed = threading.Event()


def follow(kind: str, url: str, opener: Any) -> None:
    """Keep the objects of a kind up to date, for ever."""
    while True:
        try:
            with opener.open(url, timeout=30) as answer:
                listed = json.load(answer)
            seen[kind] = {one["metadata"]["uid"]: one for one in listed["items"]}
            changed.set()
            since = listed["metadata"]["resourceVersion"]
            with opener.open(f"{url}?watch=1&timeoutSeconds=300&resourceVersion={since}", timeout=330) as events:
                for event in map(json.loads, events):
                    if event["type"] == "ERROR":  # the version is too old
                        break
                    uid = event["object"]["metadata"]["uid"]
                    removed = event["type"] == "DELETED"
                    seen[kind] = {key: one for key, one in seen[kind].items() if key != uid} | (
                        {} if removed else {uid: event["object"]}
                    )
                    changed.set()
        except (OSError, http.client.HTTPException, ValueError) as fault:  # the API server restarts
            sys.stderr.write(f"{kind}: {fault!r}\n")
            time.sleep(0.5)


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Return whether a selector of Kubernetes selects an object with these labels."""
    tests = {
        "In": lambda value, values: value in values,
        "NotIn": lambda value, values: value not in values,
        "Exists": lambda value, values: value is not None,
        "DoesNotExist": lambda value, values: value is None,
    }
    terms = [(key, "In", [value]) for key, value in selector.get("matchLabels", {}).items()]
    terms += [(one["key"], one["operator"], one.get("values")) for one in selector.get("matchExpressions", ())]
    return all(tests[operator](labels.get(key), values) for key, operator, values in terms)


def labels_of(one: Object) -> dict[str, str]:
    """Return the labels of an object."""
    found: dict[str, str] = one["metadata"].get("labels", {})
    return found


def live_pods(pods: dict[str, Object]) -> dict[str, Object]:
    """Return the pods that have an address of theirs, by address. The address of a pod that has ended is free again."""
    alive = [one for one in pods.values() if one["status"].get("phase") in ("Pending", "Running")]
    return {
        one["status"]["podIP"]: one
        for one in alive
        if one["status"].get("podIP") and not one["spec"].get("hostNetwork")
    }


def places(
    peer: Object, side: str, own: str, pods: dict[str, Object], spaces: dict[str, Object]
) -> tuple[str, list[str]]:
    """Return the match of nftables for a peer, empty if it matches nothing, and the addresses of its pods."""
    if block := peer.get("ipBlock"):
        if ip_network(block["cidr"]).version != 4:
            return "", []
        without = f" ip {side} != {{ {', '.join(block['except'])} }}" if block.get("except") else ""
        return f"ip {side} {block['cidr']}{without}", []
    names = {own}
    if "namespaceSelector" in peer:
        named = {one["metadata"]["name"]: labels_of(one) for one in spaces.values()}
        names = {name for name, labels in named.items() if matches(peer["namespaceSelector"], labels)}
    found = [
        ip
        for ip, pod in pods.items()
        if pod["metadata"]["namespace"] in names and matches(peer.get("podSelector", {}), labels_of(pod))
    ]
    return (f"ip {side} {{ {', '.join(found)} }}" if found else ""), found


def port_matches(port: Object, targets: list[Object]) -> Iterator[str]:
    """Yield the matches of nftables for a port. A name stands for the numbers that it has in the target pods."""
    protocol = port.get("protocol", "TCP")
    number = port.get("port")
    if number is None:
        yield f"meta l4proto {protocol.lower()}"
    elif isinstance(number, int):
        yield f"{protocol.lower()} dport {number}-{port.get('endPort', number)}"
    else:
        for pod in targets:
            for one in (one for container in pod["spec"]["containers"] for one in container.get("ports", ())):
                if one.get("name") == number and one.get("protocol", "TCP") == protocol:
                    yield f"ip daddr {pod['status']['podIP']} {protocol.lower()} dport {one['containerPort']}"


def chain(
    ip: str, direction: str, policies: list[Object], pods: dict[str, Object], spaces: dict[str, Object]
) -> list[str]:
    """Return the rules of a pod that these policies select: what they allow returns, all else is dropped."""
    side, peers = ("saddr", "from") if direction == "ingress" else ("daddr", "to")
    rules = []
    for policy in policies:
        for rule in policy["spec"].get(direction, ()):
            given = [places(peer, side, policy["metadata"]["namespace"], pods, spaces) for peer in rule.get(peers, ())]
            everyone = [("", list(pods))]
            for match, found in [one for one in given if one[0]] if rule.get(peers) else everyone:
                targets = [pods[ip]] if direction == "ingress" else [pods[one] for one in found]
                ports = [text for port in rule.get("ports", ()) for text in port_matches(port, targets)]
                rules += [f"{match} {text} return" for text in (ports if rule.get("ports") else [""])]
    return [*rules, "drop"]


def table(pod_range: str) -> str:
    """Return the table for all objects."""
    pods, spaces = live_pods(seen["pods"]), seen["namespaces"]
    chains, jumps = [], {"ingress": [], "egress": []}
    for ip, pod in sorted(pods.items()):
        for direction in jumps:
            selecting = [
                one
                for one in seen["policies"].values()
                if one["metadata"]["namespace"] == pod["metadata"]["namespace"]
                and matches(one["spec"].get("podSelector", {}), labels_of(pod))
                and direction.capitalize() in one["spec"]["policyTypes"]
            ]
            if selecting:
                name = f"{direction}-{ip.replace('.', '-')}"
                rules = chain(ip, direction, selecting, pods, spaces)
                chains.append(f"chain {name} {{\n{chr(10).join(rules)}\n}}")
                jumps[direction].append(f"ip {'daddr' if direction == 'ingress' else 'saddr'} {ip} jump {name}")
    unknown = f"ip saddr {pod_range} ip saddr != {{ {', '.join([*pods, pod_range.replace('0/24', '1')])} }}"
    head = "policy accept; ct state established,related accept"
    lines = [
        f"{NO_TABLE}table ip {TABLE} {{",
        *chains,
        *("chain egress {", f"{unknown} th dport != 53 drop", *jumps["egress"], "}"),
        *("chain ingress {", *jumps["ingress"], "}"),
        f"chain forward {{ type filter hook forward priority 10; {head}; jump egress; jump ingress; }}",
        f"chain input {{ type filter hook input priority 10; {head}; jump egress; }}",  # to the node's own addresses
        "}\n",
    ]
    return "\n".join(lines)


def load(rules: str) -> None:
    """Let nft carry out all lines at once, or none."""
    subprocess.run(["/usr/sbin/nft", "-f", "-"], input=rules, text=True, check=True)


def main(server: str, keys: str, pod_range: str) -> None:
    """Keep the table up to date until SIGTERM, and then remove it."""
    context = ssl.create_default_context(cafile=f"{keys}/ca.crt")
    context.load_cert_chain(f"{keys}/admin.crt", f"{keys}/admin.key")
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    for kind, path in KINDS.items():
        threading.Thread(target=follow, args=(kind, server + path, opener), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    last = ""
    try:
        while True:
            changed.wait()
            changed.clear()
            if len(seen) == len(KINDS) and (now := table(pod_range)) != last:
                load(now)
                last = now
    finally:  # without the program, a new pod would stay unknown
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        load(NO_TABLE)


if __name__ == "__main__":
    main(*sys.argv[1:])
