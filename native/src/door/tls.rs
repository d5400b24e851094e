//! Plaintext and TLS on one port, distinguished by the first byte of a connection, or TLS alone.
//! HTTP/2 and the remoting protocol share a port in the same way: remoting frames are shorter than
//! 16 MiB and therefore begin with 0. Over TLS, a client that names HTTP/2 (ALPN) speaks gRPC. For
//! any other client the first byte after the handshake decides.
//!
//! Certificates can be replaced while the server runs; open connections keep the old one.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::TlsAcceptor;

/// The first byte of a TLS handshake; the HTTP/2 preface starts with another.
const TLS_HANDSHAKE: u8 = 0x16;
/// The first byte of a remoting frame.
const REMOTING: u8 = 0;

/// Generate a certificate and key (PEM) valid for these names, for development: clients must not
/// check it, or trust exactly this one.
pub fn self_signed(names: Vec<String>) -> Result<(String, String), String> {
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| error.to_string())?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}

/// The transport of a connection.
pub enum Spoken {
    /// HTTP/2 in plaintext.
    Plain(TcpStream),
    /// HTTP/2 over TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// HTTP/2 over TLS that the client did not name; its first bytes are read already.
    TlsRead(Box<BufReader<TlsStream<TcpStream>>>),
    /// Remoting frames in plaintext.
    Remoting(TcpStream),
    /// Remoting frames over TLS; the first bytes are read already.
    RemotingTls(Box<BufReader<TlsStream<TcpStream>>>),
}

/// The certificate authorities of clients.
pub struct ClientAuthority<'a> {
    /// Their certificates (PEM).
    pub certificates: &'a [u8],
    /// Refuse clients without a certificate. A certificate of another authority is always refused.
    pub required: bool,
    /// Their revocation lists (PEM): a certificate in one is refused. One whose authority has no
    /// list counts as valid, and a list that has expired still counts.
    pub revoked: &'a [u8],
}

/// The certificate in use, if there is one.
#[derive(Default)]
pub struct Tls {
    config: RwLock<Option<Arc<ServerConfig>>>,
    only: AtomicBool,
}

impl Tls {
    /// Use this certificate chain and key (PEM) for new connections.
    pub fn replace(
        &self,
        chain: &[u8],
        key: &[u8],
        clients: Option<ClientAuthority<'_>>,
    ) -> Result<(), String> {
        let config = configuration(chain, key, clients).map_err(|error| error.to_string())?;
        *self
            .config
            .write()
            .expect("a thread panicked while it held this lock") = Some(Arc::new(config));
        Ok(())
    }

    /// Close connections in plaintext from now on.
    pub fn refuse_plaintext(&self) {
        self.only.store(true, Ordering::Relaxed);
    }

    /// Detect the transport and do the handshake, within `patience`. Without `remoting` everything
    /// counts as HTTP/2.
    pub async fn accept(
        &self,
        stream: TcpStream,
        patience: Duration,
        remoting: bool,
    ) -> io::Result<Spoken> {
        timeout(patience, self.shake_hands(stream, remoting)).await?
    }

    async fn shake_hands(&self, stream: TcpStream, remoting: bool) -> io::Result<Spoken> {
        let mut first = [0u8];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[0] != TLS_HANDSHAKE {
            if self.only.load(Ordering::Relaxed) {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "plaintext is not accepted",
                ));
            }
            return Ok(if remoting && first[0] == REMOTING {
                Spoken::Remoting(stream)
            } else {
                Spoken::Plain(stream)
            });
        }
        let config = self
            .config
            .read()
            .expect("a thread panicked while it held this lock")
            .clone();
        match config {
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "TLS is not configured",
            )),
            Some(config) => {
                let stream = TlsAcceptor::from(config).accept(stream).await?;
                if remoting && stream.get_ref().1.alpn_protocol().is_none() {
                    return by_first_byte(stream).await;
                }
                Ok(Spoken::Tls(Box::new(stream)))
            }
        }
    }
}

async fn by_first_byte(stream: TlsStream<TcpStream>) -> io::Result<Spoken> {
    let mut stream = BufReader::new(stream);
    match stream.fill_buf().await?.first() {
        None => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(&REMOTING) => Ok(Spoken::RemotingTls(Box::new(stream))),
        Some(_) => Ok(Spoken::TlsRead(Box::new(stream))),
    }
}

fn configuration(
    chain: &[u8],
    key: &[u8],
    clients: Option<ClientAuthority<'_>>,
) -> Result<ServerConfig, Box<dyn std::error::Error>> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(authority.certificates) {
                roots.add(certificate?)?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if !authority.required {
                verifier = verifier.allow_unauthenticated();
            }
            if !authority.revoked.is_empty() {
                let lists = CertificateRevocationListDer::pem_slice_iter(authority.revoked);
                verifier = verifier
                    .with_crls(lists.collect::<Result<Vec<_>, _>>()?)
                    .only_check_end_entity_revocation()
                    .allow_unknown_revocation_status();
            }
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
