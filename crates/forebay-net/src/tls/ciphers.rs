//! OpenSSL's cipher strings (nginx: ssl_ciphers; openssl-ciphers(1)) and group lists (ssl_ecdh_curve), applied to the
//! suites of rustls. Words for other suites match nothing, as in a build of OpenSSL without them.

use super::p521::SECP521R1;
use rustls::SupportedCipherSuite;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{cipher_suite as suites, kx_group as groups};

/// A cipher suite of TLS 1.2 that is served.
#[derive(Clone, Copy, Debug)]
struct Suite {
    name: &'static str,
    ecdsa: bool,
    bits: u16,
    chacha: bool,
    served: &'static SupportedCipherSuite,
}

/// Served suites, in OpenSSL's order of strength.
static SUITES: [Suite; 6] = [
    Suite {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        ecdsa: true,
        bits: 256,
        chacha: false,
        served: &suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    },
    Suite {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        ecdsa: false,
        bits: 256,
        chacha: false,
        served: &suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    },
    Suite {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        ecdsa: true,
        bits: 256,
        chacha: true,
        served: &suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Suite {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        ecdsa: false,
        bits: 256,
        chacha: true,
        served: &suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Suite {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        ecdsa: true,
        bits: 128,
        chacha: false,
        served: &suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    },
    Suite {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        ecdsa: false,
        bits: 128,
        chacha: false,
        served: &suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    },
];

/// Suites that a cipher string selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Indexes into the served suites of TLS 1.2, best first.
    chosen: Vec<usize>,
    /// Names of single suites in the string that are not served.
    pub unserved: Vec<String>,
}

impl List {
    /// Returns `true` if no suite is selected.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Returns the suites, best first.
    pub fn suites(&self) -> impl Iterator<Item = SupportedCipherSuite> + '_ {
        self.chosen.iter().filter_map(|i| SUITES.get(*i)).map(|s| *s.served)
    }

    /// Returns OpenSSL's names of the suites.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.chosen.iter().filter_map(|i| SUITES.get(*i)).map(|s| s.name)
    }
}

/// Suites that a word matches.
enum Word {
    /// A class of suites.
    Class(fn(&Suite) -> bool),
    /// One suite.
    One(usize),
    /// A class that is not served.
    Nothing,
    /// Neither: a suite that is not served, or a mistake.
    Unknown,
}

impl Word {
    /// Returns `true` if the word matches the suite with the number `i`.
    fn matches(&self, i: usize, suite: &Suite) -> bool {
        match self {
            Word::Class(f) => f(suite),
            Word::One(one) => *one == i,
            Word::Nothing | Word::Unknown => false,
        }
    }
}

fn word(w: &str) -> Word {
    let same = |name: &str| w == name || iana(name).is_some_and(|n| n == w);
    if let Some(i) = SUITES.iter().position(|s| same(s.name)) {
        return Word::One(i);
    }
    Word::Class(match w {
        "ALL" | "DEFAULT" | "HIGH" | "TLSv1.2" | "kEECDH" | "kECDHE" | "EECDH" | "ECDHE" | "ECDH"
        | "FIPS" => |_| true,
        "aRSA" => |s| !s.ecdsa,
        "aECDSA" | "ECDSA" => |s| s.ecdsa,
        "AES" | "AESGCM" => |s| !s.chacha,
        "AES128" => |s| !s.chacha && s.bits == 128,
        "AES256" => |s| !s.chacha && s.bits == 256,
        "CHACHA20" => |s| s.chacha,
        "SUITEB128" => |s| s.ecdsa && !s.chacha,
        "SUITEB128ONLY" => |s| s.ecdsa && s.bits == 128,
        "SUITEB192" => |s| s.ecdsa && s.bits == 256 && !s.chacha,
        w if UNSERVED_CLASSES.contains(&w) => return Word::Nothing,
        _ => return Word::Unknown,
    })
}

/// Classes of suites that are not served.
const UNSERVED_CLASSES: &[&str] = &[
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "EXPORT40",
    "EXPORT56",
    "eNULL",
    "NULL",
    "aNULL",
    "kRSA",
    "RSA",
    "kEDH",
    "kDHE",
    "EDH",
    "DHE",
    "DH",
    "ADH",
    "AECDH",
    "kDHr",
    "kDHd",
    "kDH",
    "kECDHr",
    "kECDHe",
    "kECDH",
    "aDH",
    "aECDH",
    "aDSS",
    "DSS",
    "TLSv1",
    "TLSv1.0",
    "SSLv2",
    "SSLv3",
    "AESCCM",
    "AESCCM8",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "3DES",
    "DES",
    "RC4",
    "RC2",
    "IDEA",
    "SEED",
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    "GOST",
    "GOST94",
    "GOST89MAC",
    "aGOST",
    "aGOST01",
    "kGOST",
    "PSK",
    "kPSK",
    "aPSK",
    "kECDHEPSK",
    "kDHEPSK",
    "kRSAPSK",
    "SRP",
    "aSRP",
    "kSRP",
    "KRB5",
    "kFZA",
    "aFZA",
    "FZA",
    "CBC",
    "COMPLEMENTOFALL",
    "COMPLEMENTOFDEFAULT",
];

/// Returns the registered name of a suite that is served.
fn iana(name: &str) -> Option<String> {
    let (auth, rest) = name.strip_prefix("ECDHE-")?.split_once('-')?;
    let rest = match rest {
        "CHACHA20-POLY1305" => "CHACHA20_POLY1305_SHA256".to_owned(),
        gcm => gcm.replacen("AES", "AES_", 1).replace('-', "_"),
    };
    Some(format!("TLS_ECDHE_{auth}_WITH_{rest}"))
}

/// Parses a cipher string. Accepts any text; the list is empty if no served suite is named.
pub fn parse(text: &str) -> List {
    let mut selection = Selection::default();
    for element in text.split([':', ',', ' ', ';']).filter(|e| !e.is_empty()) {
        selection.apply(element);
    }
    selection.list
}

/// Suites that the elements of a cipher string so far have selected.
#[derive(Default)]
struct Selection {
    list: List,
    /// Suites that `!` has removed for good.
    killed: [bool; SUITES.len()],
}

impl Selection {
    fn apply(&mut self, element: &str) {
        let chosen = &mut self.list.chosen;
        let (sign, body) = split_sign(element);
        let words: Vec<Word> = body.split('+').map(word).collect();
        let matches = |i: usize| SUITES.get(i).is_some_and(|s| words.iter().all(|w| w.matches(i, s)));
        match sign {
            b'!' => {
                chosen.retain(|i| !matches(*i));
                self.killed.iter_mut().enumerate().for_each(|(i, killed)| *killed |= matches(i));
            }
            b'-' => chosen.retain(|i| !matches(*i)),
            b'+' => chosen.sort_by_key(|i| matches(*i)),
            b'@' => self.apply_command(body),
            _ => {
                let new = self.killed.iter().enumerate().filter(|(i, killed)| !**killed && matches(*i));
                let new: Vec<usize> = new.map(|(i, _)| i).filter(|i| !chosen.contains(i)).collect();
                chosen.extend(new);
                if let [Word::Unknown] = words.as_slice() {
                    self.list.unserved.push(body.to_owned());
                }
            }
        }
    }

    /// Applies `@STRENGTH`. The other command, `@SECLEVEL=`, allows every suite here.
    fn apply_command(&mut self, command: &str) {
        if command == "STRENGTH" {
            self.list.chosen.sort_by_key(|i| SUITES.get(*i).map_or(0, |s| u16::MAX - s.bits));
        }
    }
}

/// Splits an element into its sign, a blank if it has none, and its words.
fn split_sign(element: &str) -> (u8, &str) {
    match element.as_bytes().first() {
        Some(sign @ (b'!' | b'-' | b'+' | b'@')) => (*sign, element.get(1..).unwrap_or_default()),
        _ => (b' ', element),
    }
}

/// Parses names of TLS 1.3 suites, separated by colons (`Ciphersuites` of `ssl_conf_command`).
///
/// # Errors
/// The first unknown name.
pub fn suites13(text: &str) -> Result<Vec<SupportedCipherSuite>, String> {
    text.split(':')
        .filter(|n| !n.is_empty())
        .map(|name| match name {
            "TLS_AES_256_GCM_SHA384" => Ok(suites::TLS13_AES_256_GCM_SHA384),
            "TLS_AES_128_GCM_SHA256" => Ok(suites::TLS13_AES_128_GCM_SHA256),
            "TLS_CHACHA20_POLY1305_SHA256" => Ok(suites::TLS13_CHACHA20_POLY1305_SHA256),
            _ => Err(name.to_owned()),
        })
        .collect()
}

/// Returns all suites of TLS 1.3, in OpenSSL's order.
pub fn all13() -> Vec<SupportedCipherSuite> {
    vec![
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
        suites::TLS13_AES_128_GCM_SHA256,
    ]
}

/// Sorts suites by cost for clients that compute AES in hardware (see [`begins_with_chacha`]): AES-128-GCM with SHA-256
/// first, whose handshake costs a quarter less than one with SHA-384 and which browsers put first, too; then
/// AES-256-GCM.
pub fn by_cost(suites: &mut [SupportedCipherSuite]) {
    suites.sort_by_key(|s| match suite_name(u16::from(s.suite())) {
        Some(name) if name.contains("CHACHA20") => 2,
        Some(name) if name.contains("256-GCM") || name.contains("256_GCM") => 1,
        _ => 0,
    });
}

/// Returns `true` if a client's list begins with a suite of ChaCha20, so that it computes AES slowly.
pub fn begins_with_chacha(offered: &[u16]) -> bool {
    // The list may begin with values that mean nothing (RFC 8701).
    let first = offered.iter().find_map(|n| suite_name(*n));
    first.is_some_and(|name| name.contains("CHACHA20"))
}

fn name_in(names: &[(u16, &'static str)], number: u16) -> Option<&'static str> {
    names.iter().find(|(n, _)| *n == number).map(|(_, name)| *name)
}

/// Returns OpenSSL's name of a suite by its number.
pub fn suite_name(number: u16) -> Option<&'static str> {
    name_in(SUITE_NAMES, number)
}

/// OpenSSL's names of suites.
const SUITE_NAMES: &[(u16, &str)] = &[
    (0x1301, "TLS_AES_128_GCM_SHA256"),
    (0x1302, "TLS_AES_256_GCM_SHA384"),
    (0x1303, "TLS_CHACHA20_POLY1305_SHA256"),
    (0xc02b, "ECDHE-ECDSA-AES128-GCM-SHA256"),
    (0xc02c, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (0xc02f, "ECDHE-RSA-AES128-GCM-SHA256"),
    (0xc030, "ECDHE-RSA-AES256-GCM-SHA384"),
    (0xcca8, "ECDHE-RSA-CHACHA20-POLY1305"),
    (0xcca9, "ECDHE-ECDSA-CHACHA20-POLY1305"),
    // Offered by clients, never chosen here.
    (0xccaa, "DHE-RSA-CHACHA20-POLY1305"),
    (0x009e, "DHE-RSA-AES128-GCM-SHA256"),
    (0x009f, "DHE-RSA-AES256-GCM-SHA384"),
    (0x009c, "AES128-GCM-SHA256"),
    (0x009d, "AES256-GCM-SHA384"),
    (0x002f, "AES128-SHA"),
    (0x0035, "AES256-SHA"),
    (0x003c, "AES128-SHA256"),
    (0x003d, "AES256-SHA256"),
    (0xc009, "ECDHE-ECDSA-AES128-SHA"),
    (0xc00a, "ECDHE-ECDSA-AES256-SHA"),
    (0xc013, "ECDHE-RSA-AES128-SHA"),
    (0xc014, "ECDHE-RSA-AES256-SHA"),
    (0xc023, "ECDHE-ECDSA-AES128-SHA256"),
    (0xc024, "ECDHE-ECDSA-AES256-SHA384"),
    (0xc027, "ECDHE-RSA-AES128-SHA256"),
    (0xc028, "ECDHE-RSA-AES256-SHA384"),
    (0x0033, "DHE-RSA-AES128-SHA"),
    (0x0039, "DHE-RSA-AES256-SHA"),
    (0x0067, "DHE-RSA-AES128-SHA256"),
    (0x006b, "DHE-RSA-AES256-SHA256"),
    (0x000a, "DES-CBC3-SHA"),
];

/// Returns OpenSSL's name of a group by its number.
pub fn group_name(number: u16) -> Option<&'static str> {
    name_in(GROUP_NAMES, number)
}

/// OpenSSL's names of groups.
const GROUP_NAMES: &[(u16, &str)] = &[
    (0x0017, "prime256v1"),
    (0x0018, "secp384r1"),
    (0x0019, "secp521r1"),
    (0x001d, "X25519"),
    (0x001e, "X448"),
    (0x0100, "ffdhe2048"),
    (0x0101, "ffdhe3072"),
    (0x0102, "ffdhe4096"),
    (0x0103, "ffdhe6144"),
    (0x0104, "ffdhe8192"),
    (0x0201, "MLKEM768"),
    (0x0202, "MLKEM1024"),
    (0x11eb, "SecP256r1MLKEM768"),
    (0x11ec, "X25519MLKEM768"),
    (0x11ed, "SecP384r1MLKEM1024"),
];

/// Returns OpenSSL's name of a signature algorithm by its number.
pub fn sigalg_name(number: u16) -> Option<&'static str> {
    name_in(SIGALG_NAMES, number)
}

/// OpenSSL's names of signature algorithms.
const SIGALG_NAMES: &[(u16, &str)] = &[
    (0x0401, "rsa_pkcs1_sha256"),
    (0x0501, "rsa_pkcs1_sha384"),
    (0x0601, "rsa_pkcs1_sha512"),
    (0x0403, "ecdsa_secp256r1_sha256"),
    (0x0503, "ecdsa_secp384r1_sha384"),
    (0x0603, "ecdsa_secp521r1_sha512"),
    (0x0804, "rsa_pss_rsae_sha256"),
    (0x0805, "rsa_pss_rsae_sha384"),
    (0x0806, "rsa_pss_rsae_sha512"),
    (0x0807, "ed25519"),
    (0x0808, "ed448"),
    (0x0809, "rsa_pss_pss_sha256"),
    (0x080a, "rsa_pss_pss_sha384"),
    (0x080b, "rsa_pss_pss_sha512"),
    (0x0201, "rsa_pkcs1_sha1"),
    (0x0203, "ecdsa_sha1"),
    (0x0904, "mldsa44"),
    (0x0905, "mldsa65"),
    (0x0906, "mldsa87"),
];

/// A list of groups.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Served, best first.
    pub served: Vec<&'static dyn SupportedKxGroup>,
    /// Known, but not served.
    pub unserved: Vec<String>,
}

/// Names, in lower case, of OpenSSL's groups that are not served (3.0 and later).
const UNSERVED: &[&str] = &[
    "sect163k1",
    "k-163",
    "sect163r1",
    "sect163r2",
    "b-163",
    "sect193r1",
    "sect193r2",
    "sect233k1",
    "k-233",
    "sect233r1",
    "b-233",
    "sect239k1",
    "sect283k1",
    "k-283",
    "sect283r1",
    "b-283",
    "sect409k1",
    "k-409",
    "sect409r1",
    "b-409",
    "sect571k1",
    "k-571",
    "sect571r1",
    "b-571",
    "secp160k1",
    "secp160r1",
    "secp160r2",
    "secp192k1",
    "secp192r1",
    "prime192v1",
    "p-192",
    "secp224k1",
    "secp224r1",
    "p-224",
    "secp256k1",
    "brainpoolp256r1",
    "brainpoolp384r1",
    "brainpoolp512r1",
    "brainpoolp256r1tls13",
    "brainpoolp384r1tls13",
    "brainpoolp512r1tls13",
    "x448",
    "ffdhe2048",
    "ffdhe3072",
    "ffdhe4096",
    "ffdhe6144",
    "ffdhe8192",
    "secp384r1mlkem1024",
    "mlkem512",
    "curvesm2",
    "curvesm2mlkem768",
];

/// Returns the groups that are served by default: those that Mozilla recommends.
pub fn default_groups() -> Vec<&'static dyn SupportedKxGroup> {
    vec![groups::X25519MLKEM768, groups::X25519, groups::SECP256R1, groups::SECP384R1]
}

/// Parses `ssl_ecdh_curve`.
///
/// # Errors
/// The first unknown name.
pub fn groups(text: &str) -> Result<Groups, String> {
    let mut list = Groups::default();
    for name in text.split([':', '/']).filter(|n| !n.is_empty()) {
        list.add(name)?;
    }
    Ok(list)
}

/// Names of the served groups, in lower case.
static SERVED: [(&[&str], &dyn SupportedKxGroup); 8] = [
    (&["prime256v1", "p-256", "secp256r1"], groups::SECP256R1),
    (&["secp384r1", "p-384"], groups::SECP384R1),
    (&["x25519"], groups::X25519),
    (&["x25519mlkem768"], groups::X25519MLKEM768),
    (&["secp256r1mlkem768"], groups::SECP256R1MLKEM768),
    (&["mlkem768"], groups::MLKEM768),
    (&["mlkem1024"], groups::MLKEM1024),
    (&["secp521r1", "p-521"], SECP521R1),
];

impl Groups {
    /// Adds an element of a list. An unknown name behind `?` is skipped.
    fn add(&mut self, element: &str) -> Result<(), String> {
        let optional = element.strip_prefix('?');
        let name = optional.unwrap_or(element).trim_start_matches('*').to_ascii_lowercase();
        let name = name.as_str();
        if matches!(name, "auto" | "default") {
            self.served.extend(default_groups());
            return Ok(());
        }
        match SERVED.iter().find(|(names, _)| names.contains(&name)) {
            Some((_, group)) => self.add_served(*group),
            None if UNSERVED.contains(&name) => self.unserved.push(element.to_owned()),
            None if optional.is_some() => {}
            None => return Err(element.to_owned()),
        }
        Ok(())
    }

    fn add_served(&mut self, group: &'static dyn SupportedKxGroup) {
        if !self.served.iter().any(|g| g.name() == group.name()) {
            self.served.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        parse(text).names().collect()
    }

    #[test]
    fn strings_of_real_configurations() {
        let all: Vec<_> = SUITES.iter().map(|s| s.name).collect();
        assert_eq!(names("HIGH:!aNULL:!MD5"), all);
        assert_eq!(names("DEFAULT"), all);
        assert_eq!(names("HIGH:!aNULL:!kEECDH"), Vec::<&str>::new());
        assert_eq!(names("EECDH+AESGCM:EDH+AESGCM"), [all[0], all[1], all[4], all[5]]);
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE:ECDHE+ECDSA:-aECDSA"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]
        );
        assert_eq!(names("ALL:+CHACHA20").last(), Some(&"ECDHE-RSA-CHACHA20-POLY1305"));
        assert_eq!(names("!CHACHA20:ALL").len(), 4);
        assert_eq!(names("AES128:AES256:@STRENGTH")[0], all[0]);
        assert_eq!(names("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), [all[5]]);
        assert_eq!(names("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"), [all[2]]);
    }

    #[test]
    fn what_is_not_served_is_told() {
        let list = parse("ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256:AES256-SHA:!DES-CBC3-SHA");
        assert_eq!(list.unserved, ["DHE-RSA-AES128-GCM-SHA256", "AES256-SHA"]);
        assert!(parse("AES256-SHA").is_empty());
        assert!(parse(":,; @SECLEVEL=2 !").is_empty());
    }

    #[test]
    fn groups_by_openssls_names() {
        let list = groups("X25519MLKEM768:prime256v1:secp521r1:sect571r1").unwrap();
        assert_eq!((list.served.len(), list.unserved.as_slice()), (3, ["sect571r1".to_owned()].as_slice()));
        assert!(UNSERVED.iter().all(|name| groups(name).unwrap().served.is_empty()));
        assert_eq!(groups("auto").unwrap().served.len(), 4);
        assert_eq!(groups("nonsense").unwrap_err(), "nonsense");
    }
}
