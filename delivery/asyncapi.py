"""Describe the exchange, the queues and the message as an AsyncAPI 3 document."""

from __future__ import annotations

from typing import Any

from delivery import __version__
from delivery.codec import CONTENT_TYPE
from delivery.contract import EVENT_TYPE, json_schema
from delivery.publisher import APP_ID
from delivery.topology import Topology

__all__ = ["document"]


def document(topology: Topology) -> dict[str, Any]:
    """Return the AsyncAPI 3.0.0 document of *topology*, with AMQP bindings 0.3.0."""
    channels = {
        **{each.name: _exchange(each.name, each.kind) for each in topology.exchanges},
        **{each.name: _queue(each.name) for each in topology.queues},
    }
    schema = {key: value for key, value in json_schema().items() if key != "$schema"}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Delivery",
            "version": __version__,
            "description": "Facts about published materials, one queue for each recipient.",
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": channels,
        "operations": {
            "publish": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{topology.exchanges[0].name}"},
                "bindings": {
                    "amqp": {"deliveryMode": 2, "mandatory": True, "bindingVersion": "0.3.0"}
                },
            },
            **{
                f"receive {binding.queue}": {
                    "action": "receive",
                    "channel": {"$ref": f"#/channels/{binding.queue}"},
                    "bindings": {"amqp": {"ack": True, "bindingVersion": "0.3.0"}},
                }
                for binding in topology.bindings
            },
        },
        "components": {
            "messages": {
                "MaterialPublished": {
                    "name": EVENT_TYPE,
                    "title": "A material's revision has been published",
                    "contentType": CONTENT_TYPE,
                    "correlationId": {
                        "description": "The id of the request that caused it",
                        "location": "$message.header#/correlation_id",
                    },
                    "headers": {
                        "type": "object",
                        "properties": {
                            "message_id": {"type": "string", "description": "= the event's id"},
                            "type": {"const": EVENT_TYPE},
                            "app_id": {"const": APP_ID},
                        },
                    },
                    "payload": {
                        "schemaFormat": "application/schema+json;version=draft-2020-12",
                        "schema": schema,
                    },
                }
            }
        },
    }


def _exchange(name: str, kind: str) -> dict[str, Any]:
    exchange = {"name": name, "type": kind, "durable": True, "autoDelete": False}
    return _channel(name, {"is": "routingKey", "exchange": exchange})


def _queue(name: str) -> dict[str, Any]:
    queue = {"name": name, "durable": True, "exclusive": False, "autoDelete": False}
    return _channel(name, {"is": "queue", "queue": queue})


def _channel(name: str, binding: dict[str, Any]) -> dict[str, Any]:
    return {
        "address": name,
        "messages": {"MaterialPublished": {"$ref": "#/components/messages/MaterialPublished"}},
        "bindings": {"amqp": {**binding, "bindingVersion": "0.3.0"}},
    }
