//! What a node's settings say of its place in the cluster, and the two headers of the handshake that carry it.
//!
//! ```text
//! Kvorum-Zone: <the failure domain, 1 to 64 visible ASCII characters; absent where --zone says none>
//! Kvorum-Weight: <a number from 1; absent where --weight says none>
//! ```
//!
//! The configuration decides where keys are. A plan takes these words for a node that joins, and an operator sees where
//! those of a member differ. No proof of the handshake covers them: nothing is decided by them alone.

use super::handshake::{Fields, HandshakeError};
use kvorum_core::configuration::ZONE_BYTES_MAX;

const ZONE_HEADER: &str = "Kvorum-Zone";
const WEIGHT_HEADER: &str = "Kvorum-Weight";

/// The zone and the weight that a node's settings name; none where they say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaceSettings {
    /// Its failure domain.
    pub zone: Option<String>,
    /// Its share of the data in proportion to the other weights.
    pub weight: Option<u32>,
}

impl PlaceSettings {
    /// The headers that carry them.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let zone = self.zone.clone().filter(|zone| is_zone(zone)).map(|zone| (ZONE_HEADER, zone));
        zone.into_iter().chain(self.weight.map(|weight| (WEIGHT_HEADER, weight.to_string())))
    }

    /// Reads them from headers; a node of an older release sends none.
    pub(super) fn read<'a>(
        fields: &Fields<impl Fn(&str) -> Option<&'a str>>,
    ) -> Result<Self, HandshakeError> {
        let is_there = |header| (fields.header)(header).is_some();
        let zone = || fields.read(ZONE_HEADER, |text| is_zone(text).then(|| text.to_owned()));
        let weight = || {
            fields.read(WEIGHT_HEADER, |text| {
                let weight: u32 = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())??;
                (weight > 0).then_some(weight)
            })
        };
        Ok(Self {
            zone: is_there(ZONE_HEADER).then(zone).transpose()?,
            weight: is_there(WEIGHT_HEADER).then(weight).transpose()?,
        })
    }
}

fn is_zone(text: &str) -> bool {
    (1..=ZONE_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, String)]) -> Result<PlaceSettings, HandshakeError> {
        let header =
            |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        PlaceSettings::read(&Fields { header })
    }

    /// What a node says is read again, and a node that says nothing sends nothing. Other forms are refused.
    #[test]
    fn settings_travel_in_headers() {
        for zone in [None, Some("east-1"), Some("!~")] {
            for weight in [None, Some(1), Some(u32::MAX)] {
                let said = PlaceSettings { zone: zone.map(str::to_owned), weight };
                let headers: Vec<_> = said.headers().collect();
                assert_eq!(headers.len(), usize::from(zone.is_some()) + usize::from(weight.is_some()));
                assert_eq!(read(&headers).as_ref(), Ok(&said));
            }
        }
        for (header, value) in [
            (ZONE_HEADER, ""),
            (ZONE_HEADER, "a b"),
            (ZONE_HEADER, "é"),
            (ZONE_HEADER, &"a".repeat(ZONE_BYTES_MAX + 1)),
            (WEIGHT_HEADER, "0"),
            (WEIGHT_HEADER, "+1"),
            (WEIGHT_HEADER, "4294967296"),
        ] {
            assert!(read(&[(header, value.to_owned())]).is_err(), "{header}: {value}");
        }
    }
}
