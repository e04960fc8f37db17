//! Enums that are words in the file, in JSON and on the command line.

/// Defines an enum by its variants and their words, so that no word is written twice and no list
/// of them can miss one. The text after the name says in errors what the word is for.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident, $field:literal {
            $($(#[$note:meta])* $Variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $Name {
            $($(#[$note])* $Variant,)+
        }

        impl $Name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)+];

            const WORDS: &'static [&'static str] = &[$($word,)+];

            /// The word in the file, in JSON and on the command line.
            pub const fn as_str(self) -> &'static str {
                Self::WORDS[self as usize]
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $Name {
            type Err = $crate::error::Error;

            /// Reads the word that [`as_str`](Self::as_str) prints.
            fn from_str(word: &str) -> $crate::error::Result<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word).ok_or_else(|| {
                    let why = format!("{word:?} must be one of {}", Self::WORDS.join(", "));
                    $crate::error::Error::invalid($field, why)
                })
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $Name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $Name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                let unknown = |_| serde::de::Error::unknown_variant(&word, Self::WORDS);
                word.parse().map_err(unknown)
            }
        }
    };
}

pub(crate) use words;

#[cfg(test)]
mod tests;
