"""Draw a topology as a Mermaid flowchart."""

from __future__ import annotations

from delivery.topology import Queue, Topology

__all__ = ["mermaid"]


def mermaid(topology: Topology) -> str:
    """Return the flowchart: solid arrows are bindings, dotted ones what the broker does by itself.

    That is dead-lettering, and an alternate exchange.
    """
    lines = ["flowchart LR"]
    names: dict[str, str] = {}
    for exchange in topology.exchanges:
        names["exchange " + exchange.name] = node = f"x{len(names)}"
        lines.append(f'    {node}{{{{"{exchange.name}<br/>{exchange.kind} exchange"}}}}')
    for queue in topology.queues:
        names["queue " + queue.name] = node = f"q{len(names)}"
        lines.append(f'    {node}[("{queue.name}")]')
    fanouts = {exchange.name for exchange in topology.exchanges if exchange.kind == "fanout"}
    for binding in topology.bindings:
        source, target = names["exchange " + binding.exchange], names["queue " + binding.queue]
        label = binding.key or ("every key" if binding.exchange in fanouts else "")
        lines.append(f'    {source} -- "{label}" --> {target}')
    for exchange in topology.exchanges:
        if alternate := names.get(f"exchange {exchange.arguments.get('alternate-exchange')}"):
            source = names["exchange " + exchange.name]
            lines.append(f'    {source} -. "no queue wants it" .-> {alternate}')
    for queue in topology.queues:
        target_name = queue.arguments.get("x-dead-letter-routing-key")
        if queue.arguments.get("x-dead-letter-exchange") == "" and target_name:
            source, target = names["queue " + queue.name], names[f"queue {target_name}"]
            lines.append(f'    {source} -. "{_when(queue)}" .-> {target}')
    return "\n".join(lines) + "\n"


def _when(queue: Queue) -> str:
    """Say when the broker moves a message out of *queue*."""
    ttl, length = (queue.arguments.get(name) for name in ("x-message-ttl", "x-max-length"))
    said = [f"after {ttl} ms"] if ttl is not None else []
    said += [f"beyond {length}"] if length is not None else []
    if not said and "x-delivery-limit" in queue.arguments:
        return "past its delivery limit"
    return ", or ".join(said) or "when rejected"
