package idempotency

import (
	"strconv"
	"strings"
)

// maxExponent bounds what is read of an exponent. PostgreSQL's numeric ends at 131,072 digits before the point and 16,383 after it, so
// what is beyond does not come out of a jsonb column in another spelling.
const maxExponent = 1_000_000

// appendNumber appends a JSON number in the one spelling that all numbers of equal value have: its digits without zeros at either end,
// e, and a power of ten. It counts digits and never writes out what an exponent stands for.
func appendNumber(dst []byte, text string) []byte {
	mantissa, sign := strings.CutPrefix(text, "-")
	exponent := 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		var ok bool
		if exponent, ok = power(mantissa[i+1:]); !ok {
			if strings.Trim(mantissa[:i], "0.") != "" {
				return append(dst, text...)
			}
			exponent = 0
		}
		mantissa = mantissa[:i]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return append(dst, '0') // and -0 is 0
	}
	if sign {
		dst = append(dst, '-')
	}
	dst = append(append(dst, significant...), 'e')
	return strconv.AppendInt(dst, int64(exponent-len(fraction)+len(digits)-len(significant)), 10)
}

// power reads an exponent, unless it is out of all bounds.
func power(text string) (int, bool) {
	n, err := strconv.Atoi(text) // takes the sign and leading zeros
	return n, err == nil && n >= -maxExponent && n <= maxExponent
}
