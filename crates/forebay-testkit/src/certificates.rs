//! Certificates, made by `openssl`.

use crate::Site;
use std::process::Command;

/// Options of keys on P-256.
pub const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
/// Options of RSA keys.
pub const RSA: &str = "rsa:2048";

impl Site {
    /// Runs `openssl` in the directory of the site.
    pub fn openssl(&self, args: &str) {
        let done = Command::new("openssl").args(args.split_whitespace()).current_dir(self.dir()).output();
        let done = done.expect("openssl");
        assert!(done.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Makes `NAME.crt`, a certificate that is signed by itself, and `NAME.key`. `key`: options of the key; `names`: what the
    /// certificate is for, such as `DNS:a.test`; if empty, the subject alone tells.
    pub fn certificate(&self, name: &str, key: &str, subject: &str, names: &str) {
        let path = self.dir().join(name);
        std::fs::create_dir_all(path.parent().expect("below the prefix")).expect("directory");
        let names = if names.is_empty() { String::new() } else { format!("-addext subjectAltName={names}") };
        self.openssl(&format!(
            "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={subject} {names}"
        ));
    }

    /// Makes a revocation list of `ec` that names its own certificate or nothing.
    pub fn revocation_list(&self, name: &str, revoked: bool) {
        self.write(
            "ca.cnf",
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=9\n",
        );
        self.write("index", "");
        if revoked {
            self.openssl("ca -config ca.cnf -revoke ec.crt -cert ec.crt -keyfile ec.key");
        }
        self.openssl(&format!("ca -config ca.cnf -gencrl -cert ec.crt -keyfile ec.key -out {name}"));
    }
}
