//! Aligned columns for people.

/// Rows of equal length under a heading.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Self {
        Self {
            rows: vec![heading.map(str::to_owned)],
        }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// The lines, each ended; nothing if there are no rows.
    pub(crate) fn render(&self) -> String {
        if self.rows.len() == 1 {
            return String::new();
        }
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (width, cell) in widths.iter().zip(row) {
                line.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A time span in the unit that people would choose.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A number of bytes in the unit that people would choose.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    let unit = UNITS.iter().find(|(_, size)| bytes >= *size);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(name, size)| format!("{}.{} {name}", bytes / size, bytes % size * 10 / size),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["A", "B"]);
        assert_eq!(table.render(), "");
        table.row(["long".into(), "x".into()]);
        assert_eq!(table.render(), "A     B\nlong  x\n");
    }

    #[test]
    fn spans_and_sizes_are_short() {
        let spans = [0, 999, 1500, 61_000, 3_660_000, 90_000_000].map(span);
        assert_eq!(
            spans,
            ["0 ms", "999 ms", "1.5 s", "1m01s", "1h01m", "1d01h"]
        );
        let sizes = [0, 1023, 1536, 3 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
