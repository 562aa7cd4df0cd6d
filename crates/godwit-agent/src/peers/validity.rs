//! From when until when a certificate is valid (RFC 5280 section 4.1.2.5).
//!
//! TLS judges a certificate only when a link is made. This reads the two times, so that
//! people hear of the end before it comes.

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last second of a certificate, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

impl Validity {
    /// Reads DER; `None` if it is no certificate.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut fields, _) = element(certificate, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            fields = skip(fields)?;
        }
        // Serial number, signature algorithm, issuer.
        for _ in 0..3 {
            fields = skip(fields)?;
        }
        let (times, _) = element(fields, SEQUENCE)?;
        let (not_before, times) = time(times)?;
        let (not_after, _) = time(times)?;
        Some(Self {
            not_before,
            not_after,
        })
    }
}

/// The content of an element with that tag, and what follows.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = split(bytes)?;
    (found == tag).then_some((content, rest))
}

fn skip(bytes: &[u8]) -> Option<&[u8]> {
    split(bytes).map(|(_, _, rest)| rest)
}

/// Tag, content and rest (X.690 section 8.1, definite lengths).
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let octets = usize::from(first & 0x7f);
        if octets > 4 {
            return None;
        }
        let (digits, behind) = rest.split_at_checked(octets)?;
        length = digits
            .iter()
            .fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = behind;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`; what follows.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (tag, content, rest) = split(bytes)?;
    let text = str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let (year, text) = match tag {
        UTC_TIME => {
            let (year, text) = number(text, 2)?;
            // RFC 5280: 50 to 99 are of the last century.
            (if year < 50 { 2000 + year } else { 1900 + year }, text)
        }
        GENERALIZED_TIME => number(text, 4)?,
        _ => return None,
    };
    let (month, text) = number(text, 2)?;
    let (day, text) = number(text, 2)?;
    let (hour, text) = number(text, 2)?;
    let (minute, text) = number(text, 2)?;
    let (second, _) = number(text, 2)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some((seconds, rest))
}

fn number(text: &str, digits: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, rest))
}

/// Days since 1970 of a day of the Gregorian calendar. Years begin in March here, so
/// that the leap day is the last one.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970() {
        let table = [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2026, 11, 26), 20_783),
            ((2100, 3, 1), 47_541),
        ];
        for ((year, month, day), since) in table {
            assert_eq!(days(year, month, day), since, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn both_forms_of_time_are_read() {
        let utc = b"\x17\x0d700101000001Z";
        assert_eq!(time(utc), Some((1, &[][..])));
        let later = b"\x17\x0d491231235959Zx";
        assert_eq!(time(later), Some((2_524_607_999, &b"x"[..])));
        let general = b"\x18\x0f40960101000000Z";
        assert_eq!(time(general), Some((67_090_118_400, &[][..])));
        for bad in [
            &b"\x17\x0d7001010000xxZ"[..],
            b"\x17\x02\x30",
            b"\x04\x00",
            b"",
        ] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }

    /// Hostile or torn files must not panic.
    #[test]
    fn what_is_cut_is_no_certificate() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;

        let dir = tempfile::tempdir().expect("a folder");
        crate::testing::pki::init(dir.path()).expect("an authority");
        let der = CertificateDer::from_pem_file(dir.path().join("ca.pem")).expect("PEM");
        let whole = Validity::of(&der).expect("a certificate");
        assert!(whole.not_before < whole.not_after);
        for cut in 0..der.len() {
            assert_eq!(Validity::of(&der[..cut]), None, "{cut}");
        }
    }
}
