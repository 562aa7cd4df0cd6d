//! What a value of the file can become, and how an error quotes it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use godwit_core::director::TableSize;
use godwit_wire::{MacAddr, NodeName};
use toml::Spanned;
use toml::de::DeValue;

use super::plain::{InterfaceName, Seed};
use super::reader::{Item, Place};
use super::units::{self, Bytes, Fraction};

/// A raw value, as far as the conversions need to see it.
pub(super) struct Value<'a>(pub(super) &'a DeValue<'a>);

/// A type that a value of the file can become.
pub(super) trait FromValue: Sized {
    /// Converts, or says what would be right ("a duration such as ...").
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit>;
}

/// Why a value can't become what its key needs.
#[derive(Debug)]
pub(super) struct Unfit {
    /// What would be right.
    pub(super) expected: String,
    /// What is there instead; `None`: the value itself says it.
    pub(super) got: Option<String>,
    /// The entry of a list that is meant.
    pub(super) entry: Option<ListEntry>,
}

/// An entry of a list, from 1.
#[derive(Debug)]
pub(super) struct ListEntry {
    pub(super) number: usize,
    pub(super) at: Place,
}

impl From<String> for Unfit {
    fn from(expected: String) -> Self {
        Self {
            expected,
            got: None,
            entry: None,
        }
    }
}

impl From<&str> for Unfit {
    fn from(expected: &str) -> Self {
        expected.to_owned().into()
    }
}

impl Value<'_> {
    pub(super) fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The value as an error message quotes it: cut, and on one line.
    pub(super) fn show(&self) -> String {
        match self.0 {
            DeValue::String(text) => {
                let cut: String = text.chars().take(60).collect();
                let more = if cut.len() < text.len() { "..." } else { "" };
                format!("{:?}", cut + more)
            }
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(_) => "a date".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }
}

impl FromValue for String {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| "a string in quotes".into())
    }
}

impl FromValue for u32 {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let digits = value.0.as_integer().filter(|number| number.radix() == 10);
        digits
            .and_then(|number| number.as_str().parse().ok())
            .ok_or_else(|| "a whole number".into())
    }
}

impl FromValue for Fraction {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(units::fraction)
            .ok_or_else(|| "a part such as \"1%\" or \"0.25%\"".into())
    }
}

impl FromValue for Duration {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(units::duration)
            .ok_or_else(|| "a duration such as \"10ms\" or \"2s\"".into())
    }
}

impl FromValue for Bytes {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(units::bytes)
            .ok_or_else(|| "a size such as \"64KiB\" or \"4MiB\"".into())
    }
}

impl FromValue for NodeName {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(|text| Self::new(text).ok())
            // The certificate carries it as a DNS name.
            .filter(|name| is_dns_name(name.as_str()))
            .ok_or_else(|| "a name of 1 to 32 letters, digits, `-`, `_` or `.`".into())
    }
}

impl FromValue for InterfaceName {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .filter(|name| (1..=15).contains(&name.len()) && !matches!(*name, "." | ".."))
            .filter(|name| {
                name.bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b'/')
            })
            .map(|name| Self(name.to_owned()))
            .ok_or_else(|| "the name of an interface (1 to 15 characters)".into())
    }
}

impl FromValue for MacAddr {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(|text| text.parse::<Self>().ok())
            // Nobody sends from a group's address, or from none.
            .filter(|mac| mac.0[0] & 1 == 0 && *mac != Self::default())
            .ok_or_else(|| "the MAC address of a station, such as \"02:00:00:00:00:01\"".into())
    }
}

impl FromValue for SocketAddr {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(|text| text.parse::<Self>().ok())
            .filter(|socket| socket.port() != 0)
            .map(|socket| Self::new(socket.ip().to_canonical(), socket.port()))
            .ok_or_else(|| {
                "address and port (1 to 65535), such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\""
                    .into()
            })
    }
}

impl FromValue for TableSize {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let number = u32::from_value(value).ok();
        number.and_then(Self::new).ok_or_else(|| {
            let (least, most) = (Self::MIN, Self::MAX);
            format!("a prime from {least} to {most}, such as 65537").into()
        })
    }
}

impl FromValue for Seed {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let digits = value
            .as_str()
            .filter(|text| text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit()));
        digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| "16 hexadecimal digits, as `openssl rand -hex 8` prints them".into())
    }
}

impl FromValue for IpAddr {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        value
            .as_str()
            .and_then(|text| text.parse::<Self>().ok())
            .map(|addr| addr.to_canonical())
            .ok_or_else(|| "an address without port, such as \"10.9.0.11\"".into())
    }
}

/// One value or a list of them.
impl<T: FromValue> FromValue for Vec<Item<T>> {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let Some(items) = value.0.as_array() else {
            let at = Place::default();
            return T::from_value(value).map(|value| vec![Item { value, at }]);
        };
        let convert = |(number, item): (usize, &Spanned<DeValue<'_>>)| {
            let (at, value) = (Place(item.span().start), Value(item.get_ref()));
            let made = T::from_value(&value).map(|value| Item { value, at });
            made.map_err(|unfit| Unfit {
                got: unfit.got.or_else(|| Some(value.show())),
                entry: Some(ListEntry { number, at }),
                ..unfit
            })
        };
        (1..).zip(items.iter()).map(convert).collect()
    }
}

fn is_dns_name(name: &str) -> bool {
    rustls::pki_types::DnsName::try_from(name).is_ok()
}
