//! Certificates, made by `openssl`.

use super::Site;
use std::process::Command;

/// Options of keys.
pub const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
pub const RSA: &str = "rsa:2048";

impl Site {
    /// Runs `openssl` in the directory of the site.
    pub fn openssl(&self, args: &str) {
        let done = Command::new("openssl").args(args.split_whitespace()).current_dir(self.dir()).output();
        let done = done.expect("openssl");
        assert!(done.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Makes `NAME.crt`, a certificate that is signed by itself, and `NAME.key`. `key`: options of the key, `names`: what the certificate is
    /// for, such as `DNS:a.test`; empty: the subject alone tells.
    pub fn certificate(&self, name: &str, key: &str, subject: &str, names: &str) {
        let path = self.dir().join(name);
        std::fs::create_dir_all(path.parent().expect("below the prefix")).expect("directory");
        let names = if names.is_empty() { String::new() } else { format!("-addext subjectAltName={names}") };
        self.openssl(&format!(
            "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={subject} {names}"
        ));
    }
}
