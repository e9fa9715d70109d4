"""Read the publisher's feed over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from pydantic import ValidationError

from delivery.errors import DeliveryError, TemporaryError
from delivery.feed import PAGE_LIMIT, Feed, Page

__all__ = ["FeedUnavailable", "http_feed"]

PATIENCE = 30.0  # seconds for one answer


class FeedUnavailable(TemporaryError):
    """The publisher's feed did not answer as it should; what was done so far is not lost."""


def http_feed(url: str, *, limit: int = PAGE_LIMIT) -> Feed:
    """Return the feed of the API at *url*, such as ``http://127.0.0.1:8080``.

    Raises DeliveryError for an address that is none; the feed itself raises FeedUnavailable.
    """
    if not _is_address(url):
        raise DeliveryError(f"{url!r} is no address of a feed; expected http://127.0.0.1:8080")
    # No proxy: what is read here is the publisher's own word.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def page(after: int) -> Page:
        address = f"{url.rstrip('/')}/publications?after={after}&limit={limit}"
        try:
            with opener.open(address, timeout=PATIENCE) as answer:
                return Page.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            raise FeedUnavailable(
                f"the feed at {url} says {error.code}: {_detail(error)}"
            ) from error
        except ValidationError as error:
            raise FeedUnavailable(f"what answers at {url} is no feed of publications") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise FeedUnavailable(
                f"no feed answers at {url} ({error}); start the API there: delivery api"
            ) from error

    return page


def _is_address(url: str) -> bool:
    try:
        site = urlsplit(url)
        return site.scheme in ("http", "https") and bool(site.hostname) and site.port != 0
    except ValueError:  # an IPv6 address without its bracket, a port that is no number
        return False


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
