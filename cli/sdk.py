"""Options of the SDK for the commands that are clients: the user and TLS of an endpoint."""

from ..client.session import Options
from ..client.transport.credentials import Credentials
from .links import links


def sdk_options(endpoint: str) -> Options:
    """Return the options for an endpoint. Raises CliError."""
    options = Options()
    reach = links()
    user, link = reach.credentials(endpoint), reach.tls(endpoint)
    if user is not None:
        options["credentials"] = Credentials(user.access_key, user.secret_key)
    if link is not None:
        options["tls"] = True
        if link.roots:
            options["tls_roots"] = link.roots
        if link.name:
            options["tls_server_name"] = link.name
        if link.certificate:
            options["tls_certificate"], options["tls_key"] = link.certificate, link.key
    return options
