package golden;

/** Which values the fields of a command get. */
enum Variant {
    /** Unremarkable, and different in each field. */
    ORDINARY,
    /** The least numbers, empty texts, byte strings and lists. */
    LEAST,
    /** The greatest numbers, the longest texts, long byte strings. */
    GREATEST,
    /** Texts and bytes that encoders get wrong; lists of one. */
    ODD
}
