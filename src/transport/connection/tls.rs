//! TLS settings of a client, and the TLS session of one connection.
//!
//! Module `backend` exists twice with the same names: over rustls with the feature `tls`, and as
//! stubs without the feature. No value of a stub is ever made.

use std::cell::OnceCell;

use crate::error::{Error, Result};

pub(crate) use backend::{Session, Settings};

/// The configured certificates of a client, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// The only trusted authorities. `None` means the system's root certificates.
    pub(crate) authority: Option<Vec<u8>>,
    /// The client certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that each server's certificate has to have. `None` means the host of its address.
    pub(crate) host_name: Option<String>,
}

impl Certificates {
    /// Returns whether the program has set anything.
    pub(crate) fn is_set(&self) -> bool {
        self.authority.is_some() || self.identity.is_some() || self.host_name.is_some()
    }

    /// Returns the certificates of sentinels: those of the servers, without their host name, except
    /// for what `own` sets.
    pub(crate) fn of_sentinels(&self, own: &Certificates) -> Certificates {
        let Certificates { authority, identity, host_name } = own.clone();
        Certificates {
            authority: authority.or_else(|| self.authority.clone()),
            identity: identity.or_else(|| self.identity.clone()),
            host_name,
        }
    }
}

/// Certificates, and the TLS settings built from them when the first address needs TLS.
pub(crate) struct Trust<'a> {
    certificates: &'a Certificates,
    settings: OnceCell<Settings>,
}

impl<'a> Trust<'a> {
    /// Creates the trust of one client. Certificates without the feature `tls` are an error.
    pub(crate) fn new(certificates: &'a Certificates) -> Result<Trust<'a>> {
        if certificates.is_set() && !cfg!(feature = "tls") {
            return Err(no_tls());
        }
        Ok(Trust { certificates, settings: OnceCell::new() })
    }

    /// Returns the settings that all connections of one client share.
    pub(super) fn settings(&self) -> Result<Settings> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings.clone());
        }
        let settings = Settings::new(self.certificates)?;
        Ok(self.settings.get_or_init(|| settings).clone())
    }
}

fn no_tls() -> Error {
    Error::configuration("TLS needs the feature \"tls\" of leasehold")
}

#[cfg(feature = "tls")]
mod backend {
    use super::Certificates;
    use std::io::{self, Read, Write};
    use std::sync::Arc;

    use rustls::pki_types::pem::{self, PemObject};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use crate::error::{Error, Result};

    /// The TLS settings of one client. Clones share the settings.
    #[derive(Clone)]
    pub(crate) struct Settings {
        config: Arc<ClientConfig>,
        host_name: Option<ServerName<'static>>,
    }

    impl Settings {
        pub(crate) fn new(certificates: &Certificates) -> Result<Settings> {
            let host_name = certificates.host_name.clone().map(ServerName::try_from).transpose();
            let host_name = host_name
                .map_err(|error| unusable("the host name of certificates is unusable", error))?;
            Ok(Settings { config: client_config(certificates)?, host_name })
        }

        #[cfg(test)]
        pub(crate) fn is(&self, other: &Settings) -> bool {
            Arc::ptr_eq(&self.config, &other.config)
        }
    }

    /// The TLS session of one connection, between plain bytes and a socket.
    pub(crate) struct Session(Box<ClientConnection>);

    impl Session {
        /// Creates a session. Sends nothing before the handshake.
        pub(crate) fn open(settings: &Settings, host: &str) -> io::Result<Session> {
            let name = match &settings.host_name {
                Some(name) => name.clone(),
                None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
            };
            let session = ClientConnection::new(Arc::clone(&settings.config), name);
            let mut session = session.map_err(io::Error::other)?;
            session.set_buffer_limit(None);
            Ok(Session(Box::new(session)))
        }

        pub(crate) fn is_handshaking(&self) -> bool {
            self.0.is_handshaking()
        }

        /// Continues the handshake until it is complete or the socket's step is over.
        pub(crate) fn handshake(&mut self, socket: &mut (impl Read + Write)) -> io::Result<()> {
            self.0.complete_io(socket).map(drop)
        }

        /// Encrypts bytes and keeps them for [`Session::flush`].
        pub(crate) fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.writer().write_all(bytes)
        }

        /// Writes the kept bytes. Fails with `WouldBlock` when the socket takes no more.
        pub(crate) fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
            while self.0.wants_write() {
                self.0.write_tls(socket)?;
            }
            Ok(())
        }

        pub(crate) fn is_flushed(&self) -> bool {
            !self.0.wants_write()
        }

        pub(crate) fn read(
            &mut self,
            socket: &mut (impl Read + Write),
            buffer: &mut [u8],
        ) -> io::Result<usize> {
            rustls::Stream::new(&mut *self.0, socket).read(buffer)
        }
    }

    /// Builds the TLS settings of one client.
    ///
    /// All connections of the client share the settings, the system's root certificates (read
    /// here, once) and the session tickets. Unusable certificates are skipped in the system's
    /// store, and are errors in configured PEM.
    pub(super) fn client_config(certificates: &Certificates) -> Result<Arc<ClientConfig>> {
        let roots = match &certificates.authority {
            Some(pem) => configured_roots(pem)?,
            None => system_roots()?,
        };
        // The provider is explicit, because rustls panics if the program has several providers.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("the TLS provider has no usable cipher", error))?
            .with_root_certificates(roots);
        let config = match &certificates.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates_in(chain)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(bad_pem)?;
                let builder = builder.with_client_auth_cert(chain, key);
                builder.map_err(|error| {
                    unusable("the client certificate or its key is unusable", error)
                })?
            }
        };
        Ok(Arc::new(config))
    }

    fn configured_roots(pem: &[u8]) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates_in(pem)? {
            roots
                .add(certificate)
                .map_err(|error| unusable("the certificate of the authority is unusable", error))?;
        }
        Ok(roots)
    }

    fn system_roots() -> Result<RootCertStore> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (usable, _skipped) = roots.add_parsable_certificates(found.certs);
        match (usable, found.errors.into_iter().next()) {
            (0, Some(error)) => Err(unusable("cannot load the system's root certificates", error)),
            (0, None) => Err(Error::configuration("the system has no root certificates")),
            _ => Ok(roots),
        }
    }

    fn certificates_in(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
        let all = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>();
        match all.map_err(bad_pem)? {
            none if none.is_empty() => Err(Error::configuration("a PEM contains no certificate")),
            all => Ok(all),
        }
    }

    /// Returns the error for bad PEM, without its cause, which may quote a part of a key.
    fn bad_pem(_: pem::Error) -> Error {
        Error::configuration("a certificate or a key is not valid PEM")
    }

    fn unusable(
        message: &'static str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::configuration(message).with_source(cause)
    }
}

#[cfg(not(feature = "tls"))]
mod backend {
    use super::Certificates;
    use std::io::{self, Read, Write};

    use crate::error::Result;

    /// Never created without the feature `tls`.
    #[derive(Clone)]
    pub(crate) struct Settings;

    impl Settings {
        pub(crate) fn new(_certificates: &Certificates) -> Result<Settings> {
            Err(super::no_tls())
        }
    }

    /// Has no values without the feature `tls`.
    pub(crate) enum Session {}

    impl Session {
        pub(crate) fn open(_settings: &Settings, _host: &str) -> io::Result<Session> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn is_handshaking(&self) -> bool {
            match *self {}
        }

        pub(crate) fn handshake(&mut self, _socket: &mut (impl Read + Write)) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn take(&mut self, _bytes: &[u8]) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn flush(&mut self, _socket: &mut impl Write) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn is_flushed(&self) -> bool {
            match *self {}
        }

        pub(crate) fn read(
            &mut self,
            _socket: &mut (impl Read + Write),
            _buffer: &mut [u8],
        ) -> io::Result<usize> {
            match *self {}
        }
    }
}

#[cfg(all(test, feature = "tls", not(leasehold_model)))]
mod tests {
    use super::backend::client_config;
    use super::*;
    use std::error::Error as _;
    use std::sync::Arc;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    /// A certificate authority.
    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: Vec<u8>,
    }

    impl Authority {
        fn new() -> Authority {
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "an authority");
            let pem = params.self_signed(&key).expect("an authority").pem().into_bytes();
            Authority { issuer: Issuer::new(params, key), pem }
        }

        /// Returns a new certificate for `localhost`, and its key.
        fn sign(&self) -> (Vec<u8>, Vec<u8>) {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
            (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
        }

        fn trusted(&self) -> Certificates {
            Certificates { authority: Some(self.pem.clone()), ..Certificates::default() }
        }

        /// Returns a server that demands client certificates of this authority.
        fn server(&self) -> ServerConnection {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(&self.pem).expect("PEM")).expect("a root");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = verifier.build().expect("a verifier");
            let (chain, key) = self.sign();
            let chain = CertificateDer::pem_slice_iter(&chain).map(|der| der.expect("PEM"));
            let key = PrivateKeyDer::from_pem_slice(&key).expect("PEM");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.collect(), key)
                .expect("a certificate with its key");
            ServerConnection::new(config.into()).expect("a server")
        }
    }

    /// Runs a handshake in memory, until it is complete or one side refuses.
    fn handshake(
        config: &Arc<rustls::ClientConfig>,
        mut server: ServerConnection,
    ) -> std::result::Result<(), rustls::Error> {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).expect("a buffer takes all");
            server.read_tls(&mut &*bytes).expect("a buffer gives all");
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).expect("a buffer takes all");
            client.read_tls(&mut &*bytes).expect("a buffer gives all");
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn a_configured_authority_is_trusted_and_the_client_certificate_is_presented() {
        let authority = Authority::new();
        let with_identity =
            Certificates { identity: Some(authority.sign()), ..authority.trusted() };
        let config = client_config(&with_identity).expect("good PEM");
        handshake(&config, authority.server()).expect("both sides trust the authority");
        let nameless = client_config(&authority.trusted()).expect("good PEM");
        let refused = handshake(&nameless, authority.server());
        assert!(matches!(refused, Err(rustls::Error::NoCertificatesPresented)), "{refused:?}");
    }

    #[test]
    fn the_addresses_of_a_client_share_their_settings() {
        let certificates = Authority::new().trusted();
        let trust = Trust::new(&certificates).expect("TLS is there");
        let [first, second] = [(); 2].map(|()| trust.settings().expect("good PEM"));
        assert!(first.is(&second));
    }

    #[test]
    fn an_unknown_authority_is_refused() {
        let (authority, other) = (Authority::new(), Authority::new());
        let system = Certificates { identity: Some(authority.sign()), ..Certificates::default() };
        for certificates in [other.trusted(), system] {
            let config = client_config(&certificates).expect("good PEM, and roots of the system");
            let refused = handshake(&config, authority.server());
            assert!(matches!(refused, Err(rustls::Error::InvalidCertificate(_))), "{refused:?}");
        }
    }

    #[test]
    fn bad_pem_is_a_configuration_error() {
        let authority = Authority::new();
        let (chain, key) = authority.sign();
        let of = |authority: Option<&[u8]>, identity: Option<(&[u8], &[u8])>| Certificates {
            authority: authority.map(<[u8]>::to_vec),
            identity: identity.map(|(chain, key)| (chain.to_vec(), key.to_vec())),
            host_name: None,
        };
        let other_key = authority.sign().1;
        for wrong in [
            of(Some(b"nothing"), None),
            of(Some(&key), None),
            of(Some(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), None),
            of(Some(&authority.pem), Some((&chain, b"nothing"))),
            of(Some(&authority.pem), Some((&chain, b""))),
            of(Some(&authority.pem), Some((b"", &key))),
            of(Some(&authority.pem), Some((&chain, &other_key))),
        ] {
            let error = client_config(&wrong).expect_err("no usable certificate");
            assert!(error.is_configuration(), "{error:?}");
        }
    }

    #[test]
    fn the_error_for_a_bad_key_does_not_quote_the_key() {
        let key = b"-----BEGIN c2VjcmV0\n";
        let quoted = PrivateKeyDer::from_pem_slice(key).expect_err("no key").to_string();
        assert!(quoted.contains("99, 50, 86"), "rustls quotes the key: {quoted}");
        let authority = Authority::new();
        let identity = Some((authority.sign().0, key.to_vec()));
        let error = client_config(&Certificates { identity, ..authority.trusted() });
        let error = error.expect_err("no key");
        assert!(error.source().is_none(), "{:?}", error.source());
    }
}
