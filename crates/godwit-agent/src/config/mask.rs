//! `mask`: headers whose values may differ between owner and twin.

use godwit_bpf::{MAX_MASK_LEN, MAX_MASKS};

use super::reader::Item;
use super::value::{FromValue, Value};

/// Names of headers, as written.
pub(super) struct Masks(pub(super) Vec<String>);

impl FromValue for Masks {
    fn from_value(value: &Value<'_>) -> Result<Self, String> {
        let names = Vec::<Item<String>>::from_value(value)
            .map(|items| items.into_iter().map(|item| item.value).collect::<Vec<_>>())
            .ok()
            .filter(|names| names.len() <= MAX_MASKS && names.iter().all(|name| is_header(name)));
        names.map(Self).ok_or_else(|| {
            format!(
                "a list of at most {MAX_MASKS} names of headers with at most {MAX_MASK_LEN} \
                 letters each, such as [\"Date\"]"
            )
        })
    }
}

/// RFC 9110 section 5.1: a token.
fn is_header(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.len() <= MAX_MASK_LEN && name.bytes().all(token)
}
