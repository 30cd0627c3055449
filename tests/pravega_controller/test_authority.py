import pytest

from pravega_controller.authority import dialled_host, local_host_towards


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("stream.example.com:9090", "stream.example.com"),
        ("stream.example.com", "stream.example.com"),
        ("10.1.2.3:9090", "10.1.2.3"),
        ("[fe80::1]:9090", "fe80::1"),
        ("my_service:9090", "my_service"),
        ("h1:9090,h2:9090", None),
        ("0.0.0.0:9090", None),
        ("[::]:9090", None),
        ("user@host:9090", None),
        ("unix:/tmp/socket", None),
        ("host:port", None),
        ("", None),
    ],
)
def test_only_an_authority_with_one_host_is_of_use(authority: str, host: str | None) -> None:
    assert dialled_host(authority) == host


def test_where_we_listen_is_the_answer_unless_it_is_everywhere() -> None:
    assert local_host_towards("ipv4:10.9.9.9:1", "192.0.2.7") == "192.0.2.7"
    assert local_host_towards("ipv4:127.0.0.1:1234", "0.0.0.0") == "127.0.0.1"


def test_a_peer_that_cannot_be_read_gets_our_name() -> None:
    assert local_host_towards("unix:/tmp/socket", "0.0.0.0")
