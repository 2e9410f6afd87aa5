//! What the feature `tls` adds to an address.

use redis::ConnectionInfo;

use crate::error::{Error, Result};

pub(super) use arm::with_certificates;

/// What TLS needs beyond the URL, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// The only authorities to trust; without one, those of the system.
    pub(crate) authority: Option<Vec<u8>>,
    /// The certificate that a client shows, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    fn is_empty(&self) -> bool {
        self.authority.is_none() && self.identity.is_none()
    }
}

#[cfg(feature = "tls")]
mod arm {
    use super::{Certificates, ConnectionInfo, Error, Result};
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

    /// Reads the certificates, for an address that has TLS; one without has no use for them.
    pub(crate) fn with_certificates(
        info: ConnectionInfo,
        certificates: &Certificates,
    ) -> Result<ConnectionInfo> {
        if certificates.is_empty() || !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        let identity = certificates.identity.clone();
        let client_tls =
            identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let root_cert = certificates.authority.clone();
        if root_cert.as_deref().is_some_and(|pem| !holds_a_certificate(pem)) {
            return Err(Error::configuration("there is no certificate in the authority's PEM"));
        }
        redis::Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
            .map(|client| client.get_connection_info().clone())
            .map_err(|_| Error::configuration("a certificate or a key is not in good PEM"))
    }

    /// Of a file without one the redis crate would trust nobody, which every server would
    /// then seem to be to blame for.
    fn holds_a_certificate(pem: &[u8]) -> bool {
        String::from_utf8_lossy(pem).contains("-----BEGIN CERTIFICATE-----")
    }
}

#[cfg(not(feature = "tls"))]
mod arm {
    use super::{Certificates, ConnectionInfo, Error, Result};

    /// An error if there are certificates.
    pub(crate) fn with_certificates(
        info: ConnectionInfo,
        certificates: &Certificates,
    ) -> Result<ConnectionInfo> {
        match certificates.is_empty() {
            true => Ok(info),
            false => Err(Error::configuration("TLS needs the feature \"tls\" of leasehold")),
        }
    }
}
