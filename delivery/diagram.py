"""Draw a topology as a Mermaid flowchart."""

from __future__ import annotations

from delivery.topology import Topology

__all__ = ["mermaid"]


def mermaid(topology: Topology) -> str:
    """Return the flowchart: solid arrows are bindings, dotted ones the broker's dead-lettering."""
    lines = ["flowchart LR"]
    names: dict[str, str] = {}
    for exchange in topology.exchanges:
        names["exchange " + exchange.name] = node = f"x{len(names)}"
        lines.append(f'    {node}{{{{"{exchange.name}<br/>{exchange.kind} exchange"}}}}')
    for queue in topology.queues:
        names["queue " + queue.name] = node = f"q{len(names)}"
        lines.append(f'    {node}[("{queue.name}")]')
    for binding in topology.bindings:
        source, target = names["exchange " + binding.exchange], names["queue " + binding.queue]
        lines.append(f'    {source} -- "{binding.key}" --> {target}')
    for queue in topology.queues:
        target_name = queue.arguments.get("x-dead-letter-routing-key")
        if queue.arguments.get("x-dead-letter-exchange") == "" and target_name:
            wait = queue.arguments.get("x-message-ttl")
            label = f"after {wait} ms" if wait else "past its delivery limit"
            source, target = names["queue " + queue.name], names[f"queue {target_name}"]
            lines.append(f'    {source} -. "{label}" .-> {target}')
    return "\n".join(lines) + "\n"
