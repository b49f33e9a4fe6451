"""What to do with the files that were made: the proxy's configuration, and clients' trust."""

from __future__ import annotations

import shlex

from oar_proxy.cert import authority
from oar_proxy.cert.authority import Made


def text(made: Made) -> str:
    """Return it for people, with the directory's own paths."""
    place = made.directory.absolute()
    pem, der = authority.AUTHORITY, authority.AUTHORITY_DER
    return f"""\
certificate of {", ".join(made.hosts)}
  valid until {made.server.not_valid_after_utc:%Y-%m-%d %H:%M} UTC
  renew with: oar cert renew --dir {shlex.quote(str(made.directory))}
authority {made.authority.subject.rfc4514_string()}
  valid until {made.authority.not_valid_after_utc:%Y-%m-%d}
  SHA-256 {made.fingerprint}

In the proxy's configuration:
  listen:
    tls_certificate: {place / authority.SERVER}
    tls_key: {place / authority.SERVER_KEY}

Keep {authority.AUTHORITY_KEY} where nobody else gets at it: who has it can pass for any server with
whoever trusts the authority. The proxy does not read it; only oar cert renew does.

Clients get {pem} or {der}, the same in two formats, and nothing else:

psql, psycopg and all that use libpq
  mkdir -p ~/.postgresql && cp {shlex.quote(str(place / pem))} ~/.postgresql/root.crt
  psql "host={made.hosts[0]} dbname=oar sslmode=verify-full"

Windows: Power BI, Excel, Tableau, Npgsql, ODBC
  as administrator: certutil -addstore -f Root {der}
  or for one user:  certutil -user -addstore -f Root {der}
  to look: certutil -store Root {made.thumbprint}
  to undo: certutil -delstore Root {made.thumbprint}
  A Power BI gateway reads the store of its own machine: import it there, too.

macOS
  sudo security add-trusted-cert -d -r trustRoot \\
    -k /Library/Keychains/System.keychain {pem}

Debian, Ubuntu
  sudo cp {pem} /usr/local/share/ca-certificates/oar.crt && sudo update-ca-certificates
  libpq 16 and later reads it with sslrootcert=system

Fedora, Red Hat
  sudo cp {pem} /etc/pki/ca-trust/source/anchors/oar.crt && sudo update-ca-trust

Java: DBeaver, Metabase and other users of JDBC, in the URL
  sslmode=verify-full&sslrootcert=/path/to/{pem}
  or in Java's own store, and then sslfactory=org.postgresql.ssl.DefaultJavaSSLFactory in the URL:
  keytool -importcert -cacerts -storepass changeit -noprompt -alias oar -file {pem}
"""
