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
    /// Smallest number of bits that the key of a suite may have, by `@SECLEVEL=`.
    min_bits: u16,
    /// Names of single suites in the string that are not served.
    pub unserved: Vec<String>,
}

impl List {
    /// Returns the suites, best first.
    pub fn suites(&self) -> impl Iterator<Item = SupportedCipherSuite> + '_ {
        self.chosen.iter().filter_map(|i| SUITES.get(*i)).map(|s| *s.served)
    }

    /// Returns OpenSSL's names of the suites.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.chosen.iter().filter_map(|i| SUITES.get(*i)).map(|s| s.name)
    }

    /// Returns `true` if the security level allows a suite. It counts for suites of TLS 1.3 as well, which the string does not name.
    pub fn allows(&self, suite: &SupportedCipherSuite) -> bool {
        let short = suite_name(u16::from(suite.suite())).is_some_and(|name| name.contains("128"));
        self.min_bits <= if short { 128 } else { 256 }
    }
}

/// Reason for which a cipher string is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not of OpenSSL's grammar.
    InvalidCommand,
    /// It selects no suite that is served.
    NoMatch,
}

impl std::fmt::Display for Refused {
    /// Writes OpenSSL's error.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refused::InvalidCommand => "error:0A000118:SSL routines::invalid command",
            Refused::NoMatch => "error:0A0000B9:SSL routines::no cipher match",
        })
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
    /// A suite that is not served.
    Unserved,
    /// None of these: the name of a rare suite, or a mistake.
    Unknown,
}

impl Word {
    /// Returns `true` if the word matches the suite with the number `i`.
    fn matches(&self, i: usize, suite: &Suite) -> bool {
        match self {
            Word::Class(f) => f(suite),
            Word::One(one) => *one == i,
            Word::Nothing | Word::Unserved | Word::Unknown => false,
        }
    }
}

fn word(w: &str) -> Word {
    let same = |name: &str| w == name || iana(name).is_some_and(|n| n == w);
    if let Some(i) = SUITES.iter().position(|s| same(s.name)) {
        return Word::One(i);
    }
    Word::Class(match w {
        "ALL" | "HIGH" | "TLSv1.2" | "kEECDH" | "kECDHE" | "EECDH" | "ECDHE" | "ECDH" => |_| true,
        "aRSA" => |s| !s.ecdsa,
        "aECDSA" | "ECDSA" => |s| s.ecdsa,
        "AES" | "AESGCM" | "FIPS" => |s| !s.chacha,
        "AES128" => |s| !s.chacha && s.bits == 128,
        "AES256" => |s| !s.chacha && s.bits == 256,
        "CHACHA20" => |s| s.chacha,
        w if UNSERVED_CLASSES.contains(&w) => return Word::Nothing,
        w if !w.starts_with("TLS_") && SUITE_NAMES.iter().any(|(_, name)| *name == w) => {
            return Word::Unserved;
        }
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

/// Parses a cipher string as OpenSSL does (openssl-ciphers(1), and what its program prints). Unknown names are passed over.
///
/// # Errors
/// [`Refused`].
pub fn parse(text: &str) -> Result<List, Refused> {
    let mut selection = Selection::default();
    let text = selection.take_beginning(text);
    let mut rest = text.trim_start_matches(is_separator);
    while !rest.is_empty() {
        rest = selection.apply(rest)?.trim_start_matches(is_separator);
    }
    selection.list()
}

/// Returns `true` for names that many strings have without effect: of suites of TLS 1.3, whose list is another one, and of a word
/// that counts only at the beginning.
fn means_nothing_here(name: &str) -> bool {
    name == "DEFAULT" || name.starts_with("TLS_") && SUITE_NAMES.iter().any(|(_, known)| *known == name)
}

fn is_separator(c: char) -> bool {
    matches!(c, ':' | ' ' | ';' | ',')
}

/// Splits a text after the name at its beginning.
fn split_name(text: &str) -> (&str, &str) {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '=' | '_');
    text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()))
}

/// Splits a text at its first separator.
fn split_element(text: &str) -> (&str, &str) {
    text.split_at(text.find(is_separator).unwrap_or(text.len()))
}

/// Suite on its way through a cipher string.
#[derive(Clone, Copy)]
struct Candidate {
    /// Index into the served suites.
    suite: usize,
    /// `true` if it is selected.
    chosen: bool,
}

/// Suites that the elements of a cipher string so far have selected.
struct Selection {
    /// All suites in the order of preference, except those that `!` has removed for good. Suites that are not chosen are
    /// among them, since their order counts where they are added again.
    order: Vec<Candidate>,
    min_bits: u16,
    unserved: Vec<String>,
}

impl Default for Selection {
    fn default() -> Selection {
        let order = (0..SUITES.len()).map(|suite| Candidate { suite, chosen: false }).collect();
        Selection { order, min_bits: 0, unserved: Vec::new() }
    }
}

impl Selection {
    /// Applies the words that have a meaning only at the beginning of a string. Returns the rest.
    fn take_beginning<'t>(&mut self, text: &'t str) -> &'t str {
        // As in OpenSSL, one of these words stands for a fixed list, and the rest of the string is ignored.
        let suite_b = [
            ("SUITEB128ONLY", "ECDHE-ECDSA-AES128-GCM-SHA256"),
            ("SUITEB128C2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
            ("SUITEB128", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
            ("SUITEB192", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ];
        if let Some((_, list)) = suite_b.iter().find(|(word, _)| text.starts_with(word)) {
            return list;
        }
        match text.strip_prefix("DEFAULT") {
            Some(rest) => {
                self.order.iter_mut().for_each(|c| c.chosen = true);
                rest
            }
            None => text,
        }
    }

    /// Applies the element at the beginning of a text. Returns the text after it.
    fn apply<'t>(&mut self, text: &'t str) -> Result<&'t str, Refused> {
        let (sign, mut rest) = match text.as_bytes().first() {
            Some(sign @ (b'!' | b'-' | b'+' | b'@')) => (*sign, text.get(1..).unwrap_or_default()),
            _ => (b' ', text),
        };
        if sign == b'@' {
            let (command, behind) = split_name(rest);
            self.command(command)?;
            return Ok(split_element(behind).1);
        }
        let mut words = Vec::new();
        loop {
            let (name, behind) = split_name(rest);
            if name.is_empty() {
                return Err(Refused::InvalidCommand);
            }
            let word = word(name);
            let is_alone = words.is_empty() && sign == b' ' && !behind.starts_with('+');
            if is_alone && matches!(word, Word::Unserved | Word::Unknown) && !means_nothing_here(name) {
                self.unserved.push(name.to_owned());
            }
            if let Word::Unknown = word {
                // OpenSSL passes over all of the element.
                return Ok(split_element(behind).1);
            }
            words.push(word);
            rest = behind;
            match behind.strip_prefix('+') {
                Some(behind) => rest = behind,
                None => break,
            }
        }
        let matches =
            |c: &Candidate| SUITES.get(c.suite).is_some_and(|s| words.iter().all(|w| w.matches(c.suite, s)));
        self.change(sign, matches);
        Ok(rest)
    }

    /// Changes the suites that match as a sign says.
    fn change(&mut self, sign: u8, matches: impl Fn(&Candidate) -> bool) {
        let order = &mut self.order;
        match sign {
            b'!' => order.retain(|c| !matches(c)),
            // Suites that were removed last come first when they are added again.
            b'-' => {
                order.sort_by_key(|c| !(c.chosen && matches(c)));
                order.iter_mut().filter(|c| matches(c)).for_each(|c| c.chosen = false);
            }
            // The sorts are stable, so suites that do not match keep their order, as in OpenSSL.
            b'+' => order.sort_by_key(|c| c.chosen && matches(c)),
            _ => {
                order.sort_by_key(|c| !c.chosen && matches(c));
                order.iter_mut().filter(|c| matches(c)).for_each(|c| c.chosen = true);
            }
        }
    }

    /// Applies `STRENGTH` or `SECLEVEL=N`.
    fn command(&mut self, command: &str) -> Result<(), Refused> {
        if command == "STRENGTH" {
            let bits = |c: &Candidate| SUITES.get(c.suite).map_or(0, |s| s.bits);
            self.order.sort_by_key(|c| if c.chosen { u16::MAX - bits(c) } else { 0 });
            return Ok(());
        }
        self.min_bits = match command.strip_prefix("SECLEVEL=") {
            Some("0") => 0,
            Some("1") => 80,
            Some("2") => 112,
            Some("3") => 128,
            Some("4") => 192,
            Some("5") => 256,
            _ => return Err(Refused::InvalidCommand),
        };
        Ok(())
    }

    fn list(self) -> Result<List, Refused> {
        let min_bits = self.min_bits;
        let chosen: Vec<usize> = self.order.iter().filter(|c| c.chosen).map(|c| c.suite).collect();
        if chosen.is_empty() {
            return Err(Refused::NoMatch);
        }
        let strong = |i: &usize| SUITES.get(*i).is_some_and(|s| s.bits >= min_bits);
        Ok(List { chosen: chosen.into_iter().filter(strong).collect(), min_bits, unserved: self.unserved })
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

/// Returns the groups that are served by default, which are the groups that Mozilla recommends.
pub fn default_groups() -> Vec<&'static dyn SupportedKxGroup> {
    vec![groups::X25519MLKEM768, groups::X25519, groups::SECP256R1, groups::SECP384R1]
}

/// Returns `true` for a group with ML-KEM, alone or in a hybrid (IANA, TLS Supported Groups).
pub fn is_post_quantum(group: u16) -> bool {
    matches!(group, 0x0200..=0x0202 | 0x11eb..=0x11ed)
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
    /// Adds an element of a list. An unknown name with `?` before it is skipped.
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
        parse(text).map(|list| list.names().collect()).unwrap_or_default()
    }

    #[test]
    fn strings_of_real_configurations() {
        let all: Vec<_> = SUITES.iter().map(|s| s.name).collect();
        assert_eq!(names("HIGH:!aNULL:!MD5"), all);
        assert_eq!(names("DEFAULT"), all);
        assert_eq!(parse("HIGH:!aNULL:!kEECDH"), Err(Refused::NoMatch));
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
    fn unsupported_ciphers_are_reported() {
        let text = "ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256:AES256-SHA:TLS_AES_128_GCM_SHA256:!DES-CBC3-SHA";
        let list = parse(text).unwrap();
        assert_eq!(list.unserved, ["DHE-RSA-AES128-GCM-SHA256", "AES256-SHA"]);
        assert_eq!(parse("AES256-SHA"), Err(Refused::NoMatch));
    }

    #[test]
    fn security_levels_count_for_all_suites() {
        let allowed = |text| {
            let list = parse(text).unwrap();
            (list.names().count(), all13().iter().filter(|s| list.allows(s)).count())
        };
        assert_eq!(allowed("DEFAULT@SECLEVEL=0"), (6, 3));
        assert_eq!(allowed("@SECLEVEL=3:ALL"), (6, 3));
        assert_eq!(allowed("ALL:@SECLEVEL=4"), (4, 2));
        assert_eq!(allowed("ALL@SECLEVEL=5:@SECLEVEL=1"), (6, 3));
        assert_eq!(allowed("AES128@SECLEVEL=5"), (0, 2));
    }

    /// Suites of strings by `openssl ciphers`, or its refusal: each string of the table, and strings that are made of its parts.
    #[test]
    fn strings_mean_what_they_mean_to_openssl() {
        let words = [
            "ALL",
            "HIGH",
            "DEFAULT",
            "COMPLEMENTOFDEFAULT",
            "COMPLEMENTOFALL",
            "kRSA",
            "ECDHE",
            "kEECDH",
            "aRSA",
            "RSA",
            "aECDSA",
            "ECDSA",
            "AES",
            "AESGCM",
            "AES128",
            "AES256",
            "CHACHA20",
            "FIPS",
            "SHA384",
            "CBC",
            "PSK",
            "aNULL",
            "eNULL",
            "MEDIUM",
            "TLSv1.2",
            "TLSv1",
            "SUITEB128",
            "SUITEB128ONLY",
            "SUITEB128C2",
            "SUITEB192",
            "FOO",
            "high",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "AES256-SHA",
            "TLS_AES_128_GCM_SHA256",
            "STRENGTH",
            "SECLEVEL=0",
            "SECLEVEL=3",
            "SECLEVEL=4",
            "SECLEVEL=5",
            "SECLEVEL=6",
            "SECLEVEL=",
            "SECLEVEL=10",
            "",
        ];
        let signs =
            [":", ":", ":", ":!", ":-", ":+", "+", "@", ":@", " ", ",", ";", "!", "-", "::", "+!", "#"];
        let mut strings: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        for text in [
            "DEFAULT@SECLEVEL=0",
            "HIGH@STRENGTH",
            "ALL:@STRENGTH+FOO",
            "ALL:@STRENGTHX",
            "FOO@SECLEVEL=9:ALL",
            "HIGH:+",
            "HIGH:-CHACHA20:-AES256:HIGH",
            "ALL:-aRSA:+CHACHA20:ALL",
            "!AES:ALL:AES",
            "DEFAULTFOO:ALL",
            "HIGH!aNULL",
            "HIGH:!kRSA+AES",
            "kRSA+AES",
            "HIGH|AES",
            "=HIGH",
            "HIGH.AES",
            "\"HIGH\"",
            "ALL:!ALL",
            "ECDHE+AES128+aRSA",
        ] {
            strings.push(text.to_owned());
        }
        // A sequence of numbers that is the same each time (a linear congruential generator).
        let mut seed = 7u32;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as usize % n
        };
        for _ in 0..400 {
            let mut text = words[next(words.len())].to_owned();
            for _ in 0..=next(4) {
                text += signs[next(signs.len())];
                text += words[next(words.len())];
            }
            strings.push(text);
        }
        for text in strings {
            // A hyphen would begin an option of the program.
            let asked = std::process::Command::new("openssl")
                .args(["ciphers", "-s", "-tls1_2", &format!("FOO:{text}")])
                .output()
                .expect("openssl");
            // What has a meaning only at the beginning of a string is asked for there.
            let asked = if ["DEFAULT", "SUITEB"].iter().any(|w| text.starts_with(w)) {
                std::process::Command::new("openssl")
                    .args(["ciphers", "-s", "-tls1_2", &text])
                    .output()
                    .expect("openssl")
            } else {
                asked
            };
            let listed = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
            let served: Vec<&str> =
                listed.split(':').filter(|n| SUITES.iter().any(|s| s.name == *n)).collect();
            let invalid = String::from_utf8_lossy(&asked.stderr).contains("invalid command");
            match parse(&text) {
                Ok(list) => {
                    assert!(asked.status.success(), "{text}: OpenSSL refuses it");
                    assert_eq!(list.names().collect::<Vec<_>>(), served, "{text}");
                }
                Err(Refused::InvalidCommand) => assert!(invalid, "{text}: OpenSSL takes it: {listed}"),
                Err(Refused::NoMatch) => assert!(!invalid && served.is_empty(), "{text}: {listed}"),
            }
        }
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
