//! Certificates of servers and clients.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::Config;

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of the authority.
    pub pem: String,
}

impl Authority {
    /// Creates an authority with a key of its own.
    pub fn new() -> Authority {
        Authority::named("an authority")
    }

    /// Creates an authority with this name.
    pub fn named(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("an authority").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate for localhost, and its key.
    pub fn sign(&self) -> (String, String) {
        self.sign_for(&["localhost", "127.0.0.1"], 4000)
    }

    /// Returns a certificate for these names that is valid until the begin of a year, and its key.
    pub fn sign_for(&self, names: &[&str], until: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.distinguished_name.push(DnType::CommonName, "signed by the authority");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        (certificate, key.serialize_pem())
    }

    /// Adds a certificate of this authority to the configuration of a server or a sentinel.
    pub fn configure(&self, config: Config) -> Config {
        self.configure_with(config, self.sign())
    }

    /// Adds this certificate to the configuration of a server or a sentinel.
    pub fn configure_with(&self, config: Config, (certificate, key): (String, String)) -> Config {
        config
            .file("authority.pem", &self.pem)
            .file("server.pem", certificate)
            .file("server.key", key)
            .line("tls-ca-cert-file authority.pem")
            .line("tls-cert-file server.pem")
            .line("tls-key-file server.key")
    }
}
