"""The broker's address: what the environment gives is put together, and no password is shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from delivery import checks
from delivery.address import given_url, masked, parameters_of, tls_context
from delivery.checks import Verdict
from delivery.errors import DeliveryError

SECRET = "s:e/c@r#e%t"
APART = "amqp://relay@h:5672/%2F"


def secret_in(folder: Path, mode: int = 0o600, text: str = f"{SECRET}\n") -> str:
    file = folder / "password"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_a_password_from_a_file_or_the_environment_is_the_users(tmp_path: Path) -> None:
    """Whatever it is made of; the file comes before the environment, both before the URL."""
    file, own = (
        secret_in(tmp_path),
        {"DELIVERY_AMQP_URL": "amqp://relay:old@h:5672/%2F?heartbeat=9"},
    )
    for more in ({"DELIVERY_AMQP_PASSWORD_FILE": file}, {"DELIVERY_AMQP_PASSWORD": SECRET}):
        parameters = parameters_of(given_url(own | more))
        assert (parameters.credentials.username, parameters.credentials.password) == (
            "relay",
            SECRET,
        )
        assert (parameters.host, parameters.virtual_host, parameters.heartbeat) == ("h", "/", 9)
    both = {"DELIVERY_AMQP_PASSWORD_FILE": file, "DELIVERY_AMQP_PASSWORD": "other"}
    assert parameters_of(given_url(own | both)).credentials.password == SECRET
    assert given_url({}) == ""
    assert given_url(own) == own["DELIVERY_AMQP_URL"]


@pytest.mark.parametrize(("mode", "kept"), [(0o600, True), (0o640, True), (0o604, False)])
def test_a_password_file_that_others_can_read_is_refused(
    tmp_path: Path, mode: int, kept: bool
) -> None:
    """A group may be the service's own; everybody is nobody's secret."""
    environ = {"DELIVERY_AMQP_URL": APART, "DELIVERY_AMQP_PASSWORD_FILE": secret_in(tmp_path, mode)}
    if kept:
        assert given_url(environ) != APART
        return
    with pytest.raises(DeliveryError, match=r"others on this machine .* chmod 600") as refusal:
        given_url(environ)
    assert SECRET not in str(refusal.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """No such file, an empty one, a password for nobody, a user without one."""
    for file, word in (
        (str(tmp_path / "none"), "FileNotFoundError"),
        (secret_in(tmp_path, text="\n"), "empty"),
    ):
        with pytest.raises(DeliveryError, match=word):
            given_url({"DELIVERY_AMQP_URL": APART, "DELIVERY_AMQP_PASSWORD_FILE": file})
    with pytest.raises(DeliveryError, match="names no user"):
        given_url({"DELIVERY_AMQP_URL": "amqp://h", "DELIVERY_AMQP_PASSWORD": SECRET})
    with pytest.raises(DeliveryError, match="no password: set DELIVERY_AMQP_PASSWORD_FILE"):
        parameters_of(APART)


@pytest.mark.parametrize(
    "url",
    [
        *("amqp://u:s3/cret@h/", "amqp://u:s3#cret@h/", "http://u:s3cret@h/", "u:s3cret@h"),
        *("amqp://u:12/s3@h/", "amqp://u:12?s3@h/", "amqp://u:12#s3@h/"),  # as if 12 were a port
    ],
)
def test_no_piece_of_a_password_is_in_an_error(url: str) -> None:
    """A slash ends the host for a parser, which then complains of the password as a port."""
    with pytest.raises(DeliveryError, match="can't be read") as refusal:
        parameters_of(url)
    assert "s3" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_masked_url_names_everything_else() -> None:
    """For `broker status --json` and whoever reads it over a shoulder."""
    assert masked("amqps://u:s3cret@h:5671/%2F") == "amqps://u:***@h:5671/%2F"
    assert masked("http://h:15672") == "http://h:15672"
    for url in ("amqp://u:12/s3cret@h/", "amqp://u:s3?cret@h/", "amqp://u:12#s3cret@h/"):
        assert masked(url) == "amqp://***"


def test_over_tls_certificate_and_host_name_are_checked(tmp_path: Path) -> None:
    """Nothing in the URL turns that off; a CA that can't be read is said by its file."""
    options = parameters_of("amqps://u:p@h/").ssl_options
    assert options.server_hostname == "h"
    assert options.context.check_hostname
    assert options.context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(DeliveryError, match="may not hold ssl_options"):
        parameters_of("amqps://u:p@h/?ssl_options={'cert_reqs':0}")
    assert parameters_of("amqp://u:p@h/").ssl_options is None
    ca = tmp_path / "ca.pem"
    ca.write_text("no certificate")
    for file in (ca, tmp_path / "none.pem"):
        url = given_url({"DELIVERY_AMQP_URL": "amqps://u:p@h/", "DELIVERY_AMQP_CA": str(file)})
        with pytest.raises(DeliveryError, match=f"CA can't be read from {file}"):
            tls_context(url)


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("amqp://guest:guest@broker.example:5672/", Verdict.WARN),
        ("amqp://broker.example:5672/", Verdict.WARN),  # pika's default is the same
        ("amqp://guest:guest@10.0.0.7:5672/", Verdict.WARN),
        ("amqp://guest:guest@127.0.0.1:5672/", Verdict.OK),
        ("amqp://guest:guest@[::1]:5672/", Verdict.OK),
        ("amqp://guest:guest@localhost/", Verdict.OK),
        ("amqp://guest:other@broker.example:5672/", Verdict.OK),
        ("amqp://relay:guest@broker.example:5672/", Verdict.OK),
    ],
)
def test_the_doctor_warns_of_the_login_that_everybody_knows(url: str, verdict: Verdict) -> None:
    """On loopback it is the sandbox of one person."""
    check = checks.login(url, "a broker")
    assert check.verdict is verdict
    assert ("delivery access" in check.fix) == (verdict is Verdict.WARN)
