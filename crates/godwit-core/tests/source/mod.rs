//! Sources as tests read them that hold their shape.

/// Words and marks, without comments, texts and numbers' insides.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            text_len(rest)
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if let Some(len) = char_len(rest) {
            len
        } else if is_word(first) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(rest[..len].to_owned());
            len
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of a text in quotes, with them.
fn text_len(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        if c == '"' && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// The length of a character in quotes; a lifetime is none.
fn char_len(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    if let Some(escape) = inner.strip_prefix('\\') {
        let end = escape.get(1..)?.find('\'')?;
        return Some(end + 4);
    }
    let first = inner.chars().next()?;
    let closes = inner[first.len_utf8()..].starts_with('\'');
    closes.then_some(first.len_utf8() + 2)
}
