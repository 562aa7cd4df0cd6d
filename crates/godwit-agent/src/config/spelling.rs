//! What somebody may have meant.

/// The candidate that differs from `word` in at most two letters, or a third of them.
pub(super) fn closest<'w>(
    word: &str,
    candidates: impl Iterator<Item = &'w str>,
) -> Option<&'w str> {
    // A hostile key may be as long as the file; the distance is quadratic.
    let word = Some(word).filter(|word| word.len() <= 64)?;
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let keys = ["heartbeat", "misses", "tap"];
        let meant = |word| closest(word, keys.into_iter());
        assert_eq!(meant("hearbeat"), Some("heartbeat"));
        assert_eq!(meant("mises"), Some("misses"));
        assert_eq!(meant("zebra"), None);
        assert_eq!(meant(&"heartbeat".repeat(100)), None);
    }
}
