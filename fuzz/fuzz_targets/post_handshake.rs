//! Any bytes as records and messages behind a handshake. Whole and in pieces they come to the same, and what was sealed opens.
#![no_main]

use forebay_net::tls::post_handshake::next;
use forebay_net::tls::record::{self, Broken, Half};
use libfuzzer_sys::fuzz_target;
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};

fn half(v13: bool, gcm: bool) -> Half {
    let (key, iv) = (AeadKey::from([7; 32]), Iv::new([9; 12]));
    let secrets = match gcm {
        true => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
        false => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
    };
    Half::new((0, secrets), v13).expect("keys")
}

/// Reads all messages. Returns their texts and what is left.
fn messages(mut bytes: &[u8], client: bool) -> Result<(Vec<String>, Vec<u8>), Broken> {
    let mut all = Vec::new();
    while let Some((message, behind)) = next(bytes, client)? {
        assert!(behind.len() < bytes.len());
        all.push(format!("{message:?}"));
        bytes = behind;
    }
    Ok((all, bytes.to_vec()))
}

fuzz_target!(|data: &[u8]| {
    for client in [false, true] {
        let whole = messages(data, client);
        let (first, second) = data.split_at(data.len() / 2);
        let pieces = messages(first, client).and_then(|(mut all, mut rest)| {
            rest.extend_from_slice(second);
            let (more, rest) = messages(&rest, client)?;
            all.extend(more);
            Ok((all, rest))
        });
        assert_eq!(whole.is_ok(), pieces.is_ok());
        if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
            assert_eq!(whole, pieces);
        }
    }
    for (v13, gcm) in [(true, true), (true, false), (false, true), (false, false)] {
        if let Ok(Some(length)) = record::whole(data) {
            // Nobody has the key, so nothing of it opens.
            assert!(half(v13, gcm).open(&mut data[..length].to_vec()).is_err());
        }
        let content = &data[..data.len().min(16 << 10)];
        let mut sealed = vec![0; half(v13, gcm).sealed_len(content.len())];
        half(v13, gcm).seal(22, content, &mut sealed).expect("sealed");
        let (kind, range) = half(v13, gcm).open(&mut sealed).expect("opened");
        assert_eq!((kind, &sealed[range]), (22, content));
    }
});
