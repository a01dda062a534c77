//! `strftime_now` for chat templates: the date formats templates use, in UTC, without a calendar library.

use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A moment split into calendar fields (proleptic Gregorian, UTC).
struct Calendar {
    year: i64,
    /// 0 is January.
    month_index: usize,
    day: i64,
    /// 1 is the first of January.
    day_of_year: i64,
    /// 0 is Monday.
    weekday_index: usize,
    second_of_day: i64,
}

/// Formats `unix_seconds` by a `strftime` pattern; an unknown directive is left as written.
pub(crate) fn format(unix_seconds: i64, pattern: &str) -> String {
    let moment = Calendar::from_unix(unix_seconds);
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('-') => match characters.next() {
                Some(directive) => moment.write(directive, false, &mut out),
                None => out.push_str("%-"),
            },
            Some(directive) => moment.write(directive, true, &mut out),
            None => out.push('%'),
        }
    }
    out
}

impl Calendar {
    fn from_unix(unix_seconds: i64) -> Self {
        let days = unix_seconds.div_euclid(86_400);
        // Counting years from March puts the leap day last, so that month lengths follow one formula.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let before: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let month_index = usize::try_from(month - 1).expect("months count from 1 to 12");
        Self {
            year,
            month_index,
            day,
            day_of_year: before[month_index] + day + i64::from(leap && month > 2),
            weekday_index: usize::try_from((days + 3).rem_euclid(7)).expect("a remainder of 7 is small"),
            second_of_day: unix_seconds.rem_euclid(86_400),
        }
    }

    fn write(&self, directive: char, padded: bool, out: &mut String) {
        let hour = self.second_of_day / 3_600;
        let number = |value: i64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        let month = MONTHS[self.month_index];
        let weekday = WEEKDAYS[self.weekday_index];
        let text = match directive {
            'Y' => self.year.to_string(),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month_index as i64 + 1, 2),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'd' => number(self.day, 2),
            'e' => format!("{:>2}", self.day),
            'j' => number(self.day_of_year, 3),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'M' => number(self.second_of_day / 60 % 60, 2),
            'S' => number(self.second_of_day % 60, 2),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month_index + 1, self.day),
            'T' => format!("{hour:02}:{:02}:{:02}", self.second_of_day / 60 % 60, self.second_of_day % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => {
                let dash = if padded { "" } else { "-" };
                write!(out, "%{dash}{other}").expect("writing to a String cannot fail");
                return;
            }
        };
        out.push_str(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn dates_as_templates_ask_for_them() {
        assert_eq!(format(0, "%Y-%m-%d %H:%M:%S %A %j"), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(format(1_709_210_096, "%d %b %Y"), "29 Feb 2024");
        assert_eq!(format(1_709_210_096, "%B %-d, %y %I:%M %p %j"), "February 29, 24 12:34 PM 060");
        assert_eq!(format(1_735_603_200, "%F %a %j"), "2024-12-31 Tue 366");
        assert_eq!(format(-1, "%F %T"), "1969-12-31 23:59:59");
        assert_eq!(format(0, "100%% %q %"), "100% %q %");
    }
}
