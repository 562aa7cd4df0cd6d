//! What this crate reads of certificates and lists itself: DER (X.690, definite lengths), and
//! times (RFC 5280 section 4.1.2.5).

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
/// Of a certificate: its version; of a list: its extensions.
pub(super) const EXPLICIT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The content of an element with that tag, and what follows.
pub(super) fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = split(bytes)?;
    (found == tag).then_some((content, rest))
}

pub(super) fn skip(bytes: &[u8]) -> Option<&[u8]> {
    split(bytes).map(|(_, _, rest)| rest)
}

/// An element with its tag and length.
pub(super) fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let rest = skip(bytes)?;
    bytes.get(..bytes.len() - rest.len())
}

/// Tag, content and rest.
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

/// A number without the zeros before it: what is longer is greater.
pub(super) fn unsigned(content: &[u8]) -> &[u8] {
    let zeros = content.iter().take_while(|byte| **byte == 0).count();
    content.get(zeros..).unwrap_or_default()
}

/// Whether a time comes next.
pub(super) fn is_time(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&UTC_TIME | &GENERALIZED_TIME))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, in seconds since 1970; what follows.
pub(super) fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
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
}
