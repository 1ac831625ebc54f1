//! Authority of this machine, for names that no public one certifies: localhost, private addresses and the like.
//!
//! Browsers trust its certificates once the user has installed the root (`forebay trust`). The root itself is limited to such names.

use crate::certificate::checked;
use crate::key::{Key, pem_text};
use crate::settings::{Identifier, KeyKind};
use crate::state_dir::StateDir;
use crate::x509::{self, DAY, Subject, authority_extensions, server_extensions};
use forebay_net::tls::{pem, verify};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Common name of the root.
const ROOT_NAME: &str = "Forebay local authority";
/// Life of the root, days.
const ROOT_DAYS: i64 = 3650;
/// Life of a certificate, days. Some browsers refuse more than 398.
const DAYS: i64 = 397;
/// Days before the end at which a certificate is replaced at the next start.
const REPLACED: i64 = 60;

/// Names that are never public, with those below them (RFC 6761, RFC 6762, RFC 8375; ICANN: internal).
const DOMAINS: [&str; 5] = ["localhost", "test", "local", "internal", "home.arpa"];

/// Addresses that are never public, with the lengths of their prefixes (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
const NETWORKS: [(IpAddr, u32); 8] = [
    (IpAddr::V4(Ipv4Addr::LOCALHOST), 8),
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// Returns the first bits of an address as those of the longest address.
fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// Returns a network as name constraints have it: address and mask.
fn constraint((ip, prefix): (IpAddr, u32)) -> Vec<u8> {
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    let length = if ip.is_ipv4() { 4 } else { 16 };
    let begin = |value: u128| value.to_be_bytes().get(..length).unwrap_or_default().to_vec();
    [begin(bits(ip) & mask), begin(mask)].concat()
}

/// Returns `true` for a name or an address that only the authority of this machine certifies.
pub fn is_local(identifier: &Identifier) -> bool {
    match identifier {
        Identifier::Dns(name) => {
            let below =
                |d: &str| name.strip_suffix(d).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            DOMAINS.into_iter().any(below)
        }
        Identifier::Ip(ip) => NETWORKS.into_iter().any(|(network, prefix)| {
            ip.is_ipv4() == network.is_ipv4() && (bits(*ip) ^ bits(network)).leading_zeros() >= prefix
        }),
    }
}

/// Makes a certificate that no authority has signed, for clients that name no known host: its key and itself, both PEM. `common`: common
/// name of its subject. `name`: name that it is for. `now`: seconds since 1970.
///
/// # Errors
/// The name is none, or the system has no random numbers.
pub fn self_signed(common: &str, name: &str, now: i64) -> Result<(Zeroizing<Vec<u8>>, String), String> {
    let identifier = Identifier::parse(name).ok_or_else(|| format!("{name}: not a name"))?;
    let key = Key::generate(KeyKind::P256)?;
    let certificate = x509::self_signed(&key, &server_extensions(&[identifier], &key.public()), common, now)?;
    Ok((key.to_pem(), pem_text("CERTIFICATE", &certificate)))
}

/// The authority of this machine.
pub struct LocalAuthority {
    directory: PathBuf,
    key: Key,
    /// Its certificate, DER.
    root: Vec<u8>,
    has_replaced: bool,
}

/// Files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// Chain in PEM.
    pub certificate: PathBuf,
    /// Private key in PEM.
    pub key: PathBuf,
}

/// Returns the name of the files of a certificate. Other names are another file, which another process may use.
fn file_name(identifiers: &[Identifier]) -> String {
    let all: Vec<String> = identifiers.iter().map(Identifier::to_string).collect();
    let hash = x509::key_id_text(all.join(",").as_bytes());
    let first = all.first().map(|first| first.replace(['*', ':'], "_")).unwrap_or_default();
    format!("{first}-{}", hash.get(..8).unwrap_or_default())
}

impl LocalAuthority {
    /// Returns the file with the certificate of the authority in a directory.
    pub fn root_file(directory: &Path) -> PathBuf {
        directory.join("root.crt")
    }

    /// Returns `true` if it was made in place of one that had expired, and that is not to be trusted any longer.
    pub fn has_replaced(&self) -> bool {
        self.has_replaced
    }

    /// Reads the authority of a directory, or makes one if there is none or it has expired. `now`: seconds since 1970.
    ///
    /// # Errors
    /// If its files can neither be read nor written, or another process makes them right now.
    pub fn open(directory: &Path, now: i64) -> Result<LocalAuthority, String> {
        let files = StateDir::new(directory);
        files.create()?;
        let _lock = files.lock()?.ok_or("another process uses the local authority; try again")?;
        let mut has_replaced = false;
        // Browsers may trust it, so it is not replaced in silence.
        let failed = |text: &str| format!("{}: {text}", directory.join("root.crt").display());
        match files.certificate("root")? {
            Some(known) => {
                let key = Key::from_pem(&known.key)?;
                let root = pem::certificates(&known.chain).into_iter().next().map(|c| c.to_vec());
                let root = root.filter(|r| verify::public_key(r) == Some(key.public()));
                let root = root.ok_or_else(|| failed("key and certificate do not belong together"))?;
                has_replaced = x509::leaf(&root).is_some_and(|r| r.until <= now);
                if !has_replaced {
                    return Ok(LocalAuthority { directory: directory.to_owned(), key, root, has_replaced });
                }
            }
            None if files.changed("root").is_some() => return Err(failed("its key is missing")),
            None => {}
        }
        let key = Key::generate(KeyKind::P256)?;
        let networks: Vec<Vec<u8>> = NETWORKS.into_iter().map(constraint).collect();
        let extensions = authority_extensions(&key.public(), &DOMAINS, &networks);
        let validity = (now - DAY, now + ROOT_DAYS * DAY);
        let subject = Subject { common: ROOT_NAME, public: key.public(), extensions: &extensions, validity };
        let root = x509::signed(&subject, ROOT_NAME, &key)?;
        files.write_certificate("root", pem_text("CERTIFICATE", &root).as_bytes(), &key.to_pem())?;
        Ok(LocalAuthority { directory: directory.to_owned(), key, root, has_replaced })
    }

    /// Returns the places of the files that [`LocalAuthority::certificate`] makes, and makes nothing.
    pub fn files_of(directory: &Path, identifiers: &[Identifier]) -> PairFiles {
        let name = file_name(identifiers);
        PairFiles {
            certificate: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        }
    }

    /// Returns the files of a certificate for these names, which is made unless there is one that lasts.
    ///
    /// # Errors
    /// If a name is not local, or a file cannot be written.
    pub fn certificate(&self, identifiers: &[Identifier], now: i64) -> Result<PairFiles, String> {
        if let Some(other) = identifiers.iter().find(|i| !is_local(i)) {
            return Err(format!("{other}: not a local name"));
        }
        let first = identifiers.first().ok_or("a name is wanted")?;
        let files = StateDir::new(&self.directory);
        let name = file_name(identifiers);
        let pair = LocalAuthority::files_of(&self.directory, identifiers);
        if let Some(known) = files.certificate(&name)?
            && self.lasts(identifiers, (&known.chain, &known.key), now)
        {
            return Ok(pair);
        }
        let key = Key::generate(KeyKind::P256)?;
        let extensions = server_extensions(identifiers, &self.key.public());
        let end = x509::leaf(&self.root).map_or(now, |root| root.until).min(now + DAYS * DAY);
        let common = first.to_string();
        let subject = Subject {
            common: &common,
            public: key.public(),
            extensions: &extensions,
            validity: (now - DAY, end),
        };
        let leaf = x509::signed(&subject, ROOT_NAME, &self.key)?;
        files.write_certificate(&name, pem_text("CERTIFICATE", &leaf).as_bytes(), &key.to_pem())?;
        Ok(pair)
    }

    /// Returns `true` if a stored certificate is of this authority, for these names and not near its end.
    fn lasts(&self, identifiers: &[Identifier], (chain, key): (&[u8], &[u8]), now: i64) -> bool {
        let Ok((_, leaf)) = checked(identifiers, chain, key) else { return false };
        let is_own = leaf.renewal_id.is_some_and(|id| id.starts_with(&x509::key_id_text(&self.key.public())));
        is_own && leaf.until > now + REPLACED * DAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn identifiers(names: &[&str]) -> Vec<Identifier> {
        names.iter().map(|n| Identifier::parse(n).expect("a name")).collect()
    }

    #[test]
    fn local_names() {
        for name in [
            "localhost",
            "a.localhost",
            "*.test",
            "x.home.arpa",
            "127.0.0.9",
            "10.1.2.3",
            "172.31.0.1",
            "::1",
            "fd00::1",
        ] {
            assert!(is_local(&identifiers(&[name])[0]), "{name}");
        }
        for name in [
            "example.org",
            "notlocalhost",
            "home.arpa.example",
            "172.32.0.1",
            "11.0.0.1",
            "2001:db8::1",
            "::2",
        ] {
            assert!(!is_local(&identifiers(&[name])[0]), "{name}");
        }
    }

    #[test]
    fn constraints_have_address_and_mask() {
        assert_eq!(constraint(NETWORKS[2]), [172, 16, 0, 0, 255, 240, 0, 0]);
        assert_eq!(constraint(NETWORKS[5])[15..], [&[1][..], &[255; 16]].concat());
    }

    #[test]
    fn certificates_last_and_belong_to_their_authority() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = identifiers(&["localhost", "*.localhost", "127.0.0.1", "::1"]);
        let authority = LocalAuthority::open(dir.path(), NOW).expect("an authority");
        let pair = authority.certificate(&names, NOW).expect("a certificate");
        let chain = std::fs::read(&pair.certificate).expect("written");
        // The same at the next start, but not near its end, for other names, or of another authority.
        let again = LocalAuthority::open(dir.path(), NOW).expect("an authority");
        assert_eq!(again.certificate(&names, NOW + DAY), Ok(pair.clone()));
        assert_eq!(std::fs::read(&pair.certificate).expect("written"), chain);
        again.certificate(&names, NOW + 350 * DAY).expect("a certificate");
        assert_ne!(std::fs::read(&pair.certificate).expect("written"), chain);
        // Other names leave these files alone.
        let others = authority.certificate(&identifiers(&["localhost", "a.test", "b.test", "::1"]), NOW);
        assert_ne!(others.expect("a certificate").certificate, pair.certificate);
        assert!(authority.certificate(&identifiers(&["example.org"]), NOW).is_err());
        let other = tempfile::tempdir().expect("a directory");
        let stranger = LocalAuthority::open(other.path(), NOW).expect("an authority");
        let key = std::fs::read(&pair.key).expect("a key");
        let chain = std::fs::read(&pair.certificate).expect("a certificate");
        assert!(again.lasts(&names, (&chain, &key), NOW) && !stranger.lasts(&names, (&chain, &key), NOW));
    }

    /// Certificates of an expired root are refused, and so are made again by the new one.
    #[test]
    fn an_expired_root_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = identifiers(&["localhost"]);
        let open = |now| LocalAuthority::open(dir.path(), now).expect("an authority");
        let first = open(NOW);
        first.certificate(&names, NOW).expect("a certificate");
        let end = NOW + ROOT_DAYS * DAY;
        let kept = open(end - 1);
        assert!(kept.root == first.root && !kept.has_replaced() && !first.has_replaced());
        let second = open(end);
        assert!(second.root != first.root && second.has_replaced());
        let pair = second.certificate(&names, end).expect("a certificate");
        let chain = std::fs::read(&pair.certificate).expect("written");
        let leaf = pem::certificates(&chain).first().and_then(|c| x509::leaf(c)).expect("a certificate");
        assert_eq!(leaf.until, end + DAYS * DAY);
        let again = open(end);
        assert!(again.root == second.root && !again.has_replaced());
    }

    #[test]
    fn a_root_with_the_wrong_key_or_none_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        LocalAuthority::open(dir.path(), NOW).expect("an authority");
        let (key, root) = (dir.path().join("root.key"), dir.path().join("root.crt"));
        let before = std::fs::read(&root).expect("a certificate");
        std::fs::remove_file(&key).expect("remove");
        assert!(LocalAuthority::open(dir.path(), NOW).is_err());
        std::fs::write(&key, &*Key::generate(KeyKind::P256).expect("a key").to_pem()).expect("write");
        assert!(LocalAuthority::open(dir.path(), NOW).is_err());
        assert_eq!(std::fs::read(&root).expect("a certificate"), before);
    }
}
