//! Kernel settings tried on the way: each old value is on the disk before the new one is written.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Old values, to be put back.
#[derive(Debug)]
pub struct Journal {
    root: PathBuf,
    path: PathBuf,
}

impl Journal {
    /// A journal at `path` of settings below `root` (normally `/proc/sys`). What an earlier process left there is put
    /// back first; returns the number of such settings.
    ///
    /// # Errors
    /// Text for people.
    pub fn open(root: &Path, path: &Path) -> Result<(Journal, usize), String> {
        let restored = restore(path)?;
        Ok((Journal { root: root.to_owned(), path: path.to_owned() }, restored))
    }

    fn file(&self, name: &str) -> Result<PathBuf, String> {
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) || name.contains("..") {
            return Err(format!("\"{name}\" is no kernel setting"));
        }
        Ok(self.root.join(name.replace('.', "/")))
    }

    /// Returns the value of a setting.
    ///
    /// # Errors
    /// The setting does not exist.
    pub fn get(&self, name: &str) -> Result<String, String> {
        let file = self.file(name)?;
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Checks that a setting can have this value.
    ///
    /// # Errors
    /// The kernel does not have the setting or the value, or this user may not change it.
    pub fn can(&self, name: &str, value: &str) -> Result<(), String> {
        let file = self.file(name)?;
        if !file.exists() {
            return Err(format!("this kernel has no {name}"));
        }
        if rustix::fs::access(&file, rustix::fs::Access::WRITE_OK).is_err() {
            return Err("needs root".into());
        }
        // Asking for one that is not there would load its module.
        if name == "net.ipv4.tcp_congestion_control"
            && let Ok(known) = self.get("net.ipv4.tcp_available_congestion_control")
            && !known.split(' ').any(|k| k == value)
        {
            return Err(format!("{value} is not among those of this kernel ({known})"));
        }
        Ok(())
    }

    /// Sets it; the old value is synced to the disk before.
    ///
    /// # Errors
    /// It cannot be written, or the kernel refuses the value.
    pub fn set(&self, name: &str, value: &str) -> Result<(), String> {
        let old = self.get(name)?;
        if old == value {
            return Ok(());
        }
        let file = self.file(name)?;
        let line = json!({"file": file.to_string_lossy(), "old": old, "new": value});
        self.append(&line).map_err(|e| format!("{}: {e}", self.path.display()))?;
        std::fs::write(&file, value).map_err(|e| format!("{name} = {value}: {e}"))
    }

    /// Appends a line to the journal and syncs it to the disk.
    fn append(&self, line: &Value) -> std::io::Result<()> {
        let mut journal = OpenOptions::new().create(true).append(true).open(&self.path)?;
        journal.write_all(format!("{line}\n").as_bytes())?;
        journal.sync_all()?;
        if let Some(dir) = self.path.parent() {
            let _ = File::open(dir).and_then(|d| d.sync_all());
        }
        Ok(())
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// A value could not be written; the journal stays then.
    pub fn restore(&self) -> Result<usize, String> {
        restore(&self.path)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(e) = self.restore() {
            eprintln!("forebay tune: {e}");
        }
    }
}

/// Puts back the settings of a journal, last change first, and removes it; returns their number.
///
/// # Errors
/// A value could not be written; the journal stays then.
pub(crate) fn restore(path: &Path) -> Result<usize, String> {
    let mut text = String::new();
    let Ok(mut journal) = File::open(path) else { return Ok(0) };
    journal.read_to_string(&mut text).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut count = 0;
    for line in text.lines().rev() {
        // A line cut short by a crash was not followed by a write.
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(file), Some(old)) = (entry["file"].as_str(), entry["old"].as_str()) else { continue };
        std::fs::write(file, old)
            .map_err(|e| format!("cannot put back {file} = {old}: {e}; see {}", path.display()))?;
        count += 1;
    }
    std::fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_also_after_a_kill() {
        let dir = tempfile::tempdir().expect("dir");
        let root = dir.path().join("sys");
        std::fs::create_dir_all(root.join("net/core")).expect("made");
        let file = root.join("net/core/somaxconn");
        std::fs::write(&file, "128\n").expect("written");
        let path = dir.path().join("journal");
        let (j, n) = Journal::open(&root, &path).expect("opens");
        assert_eq!(n, 0);
        j.set("net.core.somaxconn", "4096").expect("set");
        j.set("net.core.somaxconn", "8192").expect("set");
        assert_eq!(j.get("net.core.somaxconn").expect("there"), "8192");
        assert!(j.set("net.core.nothing", "1").is_err());
        assert!(j.set("../../etc/passwd", "1").is_err());
        // As after kill -9: nothing runs, and half a line is the last thing written.
        std::mem::forget(j);
        let mut f = OpenOptions::new().append(true).open(&path).expect("there");
        f.write_all(b"{\"file\": \"/x").expect("written");
        let (_j, n) = Journal::open(&root, &path).expect("opens");
        assert_eq!(n, 2);
        assert_eq!(std::fs::read_to_string(&file).expect("there").trim(), "128");
        assert!(!path.exists());
    }
}
