//! Retry packets and their integrity tag (RFC 9000, section 17.2.5; RFC 9001, section 5.8; RFC 9369, section 3.3.3).

use std::sync::LazyLock;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;

use super::build::push_ids;
use super::header::{LongKind, RETRY_TAG};
use crate::id::ConnectionId;
use crate::version::Version;

/// Public keys of versions 1 and 2: the tag shows that whoever sent the packet saw an Initial packet of the client.
static KEYS: LazyLock<[Option<LessSafeKey>; 2]> = LazyLock::new(|| {
    let keys = [0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128, 0x8fb4_b01b_56ac_48e2_60fb_cbce_ad7c_cc92];
    keys.map(|key| Some(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key.to_be_bytes()).ok()?)))
});
const NONCE_V1: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
const NONCE_V2: [u8; 12] = [0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99, 0x90, 0xef, 0xb0, 0x4a];

/// Returns the tag of a packet behind the identifier that the client chose.
fn tag(version: Version, pseudo_packet: &[u8]) -> Option<[u8; RETRY_TAG]> {
    let [v1, v2] = &*KEYS;
    let (key, nonce) = match version {
        Version::V1 => (v1, NONCE_V1),
        Version::V2 => (v2, NONCE_V2),
    };
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.as_ref()?.seal_in_place_separate_tag(nonce, Aad::from(pseudo_packet), &mut []).ok()?;
    tag.as_ref().try_into().ok()
}

/// Retry packet of a server.
#[derive(Clone, Copy, Debug)]
pub struct Retry<'a> {
    /// Version of the Initial packet that it answers.
    pub version: Version,
    /// Source connection identifier of that packet.
    pub dst: &'a ConnectionId,
    /// Identifier that the client is to send to.
    pub src: &'a ConnectionId,
    /// Destination connection identifier of the Initial packet.
    pub original_dst: &'a ConnectionId,
    /// Token that the client is to send. It is not empty.
    pub token: &'a [u8],
}

impl Retry<'_> {
    /// Appends the packet. The low four bits of `unused` go into the bits that have no meaning. Returns `false`, and appends nothing,
    /// if the tag cannot be computed.
    pub fn push(&self, out: &mut Vec<u8>, unused: u8) -> bool {
        let start = out.len();
        out.push(self.original_dst.len() as u8);
        out.extend_from_slice(self.original_dst);
        let packet_at = out.len();
        out.push(LongKind::Retry.first_byte(self.version) | unused & 0xf);
        push_ids(out, self.version.number(), self.dst, self.src);
        out.extend_from_slice(self.token);
        let Some(tag) = out.get(start..).and_then(|pseudo_packet| tag(self.version, pseudo_packet)) else {
            out.truncate(start);
            return false;
        };
        out.drain(start..packet_at);
        out.extend_from_slice(&tag);
        true
    }
}

/// Returns `true` if the tag of a Retry packet is that of a server that saw the client's first Initial packet, which was for
/// `original_dst`.
pub fn verify(version: Version, packet: &[u8], original_dst: &ConnectionId) -> bool {
    let Some((packet, actual)) = packet.split_last_chunk::<RETRY_TAG>() else { return false };
    let mut pseudo_packet = Vec::with_capacity(1 + original_dst.len() + packet.len());
    pseudo_packet.push(original_dst.len() as u8);
    pseudo_packet.extend_from_slice(original_dst);
    pseudo_packet.extend_from_slice(packet);
    tag(version, &pseudo_packet).is_some_and(|tag| verify_slices_are_equal(&tag, actual).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Header, Packet};

    fn id(bytes: &[u8]) -> ConnectionId {
        ConnectionId::new(bytes).expect("at most 20 bytes")
    }

    fn hex(digits: u128) -> [u8; 16] {
        digits.to_be_bytes()
    }

    /// RFC 9001, appendix A.4; RFC 9369, appendix A.4.
    #[test]
    fn samples() {
        let (original_dst, src) =
            (id(&0x8394_c8f0_3e51_5708_u64.to_be_bytes()), id(&0xf067_a550_2a42_62b5_u64.to_be_bytes()));
        for (version, tag) in [
            (Version::V1, 0x04a2_65ba_2eff_4d82_9058_fb3f_0f24_96ba),
            (Version::V2, 0xc864_6ce8_bfe3_3952_d955_5436_65dc_c7b6),
        ] {
            let dst = id(&[]);
            let retry = Retry { version, dst: &dst, src: &src, original_dst: &original_dst, token: b"token" };
            let mut out = vec![7];
            assert!(retry.push(&mut out, 0xff));
            let packet = &out[1..];
            assert_eq!((packet[0] & 0xf, &packet[5..7]), (0xf, &[0, 8][..]));
            assert_eq!(&packet[15..], [b"token", &hex(tag)[..]].concat());
            assert!(verify(version, packet, &original_dst));
            let Some(Packet { header: Header::Long(long), .. }) = Packet::parse(packet, 8) else { panic!() };
            assert_eq!((long.kind, long.version, long.src), (LongKind::Retry, version, src));
            assert_eq!(&packet[long.token], b"token");
        }
    }

    #[test]
    fn a_changed_packet_is_refused() {
        let (a, b) = (id(b"a"), id(b"b"));
        let retry = Retry { version: Version::V1, dst: &a, src: &b, original_dst: &a, token: b"t" };
        let mut out = Vec::new();
        assert!(retry.push(&mut out, 0));
        assert!(verify(Version::V1, &out, &a));
        assert!(!verify(Version::V2, &out, &a) && !verify(Version::V1, &out, &b));
        for at in 0..out.len() {
            let mut wrong = out.clone();
            wrong[at] ^= 1;
            assert!(!verify(Version::V1, &wrong, &a));
            assert!(!verify(Version::V1, &out[..at], &a));
        }
    }
}
