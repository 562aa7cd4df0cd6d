//! `mask`: headers whose values may differ between owner and twin.

use godwit_bpf::{MAX_MASK_LEN, MAX_MASKS};

use super::reader::Item;
use super::value::{FromValue, Unfit, Value};

/// Names of headers, as written.
pub(super) struct Masks(pub(super) Vec<String>);

/// The name of a header.
struct Header(String);

impl FromValue for Masks {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let names = Vec::<Item<Header>>::from_value(value)?;
        if names.len() > MAX_MASKS {
            return Err(Unfit {
                got: Some(format!("{} names", names.len())),
                ..format!("a list of at most {MAX_MASKS} names of headers").into()
            });
        }
        let names = names.into_iter().map(|name| name.value.0);
        Ok(Self(names.collect()))
    }
}

impl FromValue for Header {
    fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
        let name = value.as_str().filter(|name| is_header(name));
        name.map(|name| Self(name.to_owned())).ok_or_else(|| {
            format!(
                "the name of a header, such as \"Date\": 1 to {MAX_MASK_LEN} letters, without a \
                 colon"
            )
            .into()
        })
    }
}

/// RFC 9110 section 5.1: a token.
fn is_header(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.len() <= MAX_MASK_LEN && name.bytes().all(token)
}
