/* Descriptors, shapes, and conversions between element types. */
#include "support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "base/philox.h"
#include "tensor/tensor.h"

static weft_desc shape(int rank, int64_t a, int64_t b, int64_t c) {
    return weft_desc_of(WEFT_F32, rank, (int64_t[]){a, b, c});
}

static void dtypes(void **state) {
    (void)state;
    for (int d = 0; d < WEFT_DTYPES; d++) {
        weft_dtype parsed;
        assert_true(weft_dtype_bytes((weft_dtype)d) > 0);
        assert_true(wefti_dtype_parse(weft_dtype_text((weft_dtype)d), &parsed));
        assert_int_equal(parsed, d);
    }
    weft_dtype none;
    assert_false(wefti_dtype_parse("f33", &none));
    assert_string_equal(weft_dtype_text((weft_dtype)99), "?");
    assert_int_equal(weft_dtype_bytes((weft_dtype)99), 0);
    assert_true(wefti_dtype_is_float(WEFT_BF16) && !wefti_dtype_is_float(WEFT_BOOL));
}

static void descriptors(void **state) {
    (void)state;
    weft_desc d = shape(3, 2, 3, 4), scalar = shape(0, 0, 0, 0), empty = shape(2, 0, 5, 0);
    assert_int_equal(weft_desc_elems(&d), 24);
    assert_int_equal(weft_desc_bytes(&d), 96);
    assert_int_equal(weft_desc_elems(&scalar), 1);
    assert_int_equal(weft_desc_elems(&empty), 0);
    assert_string_equal(wefti_desc_text(&d).text, "f32[2, 3, 4]");
    assert_string_equal(wefti_desc_text(&scalar).text, "f32[]");
    int64_t strides[WEFT_MAX_RANK];
    wefti_strides(&d, strides);
    assert_true(strides[0] == 12 && strides[1] == 4 && strides[2] == 1);
    weft_desc same = d, other = d, typed = d;
    other.shape[2] = 5;
    typed.dtype = WEFT_I32;
    assert_true(wefti_desc_equal(&d, &same));
    assert_false(wefti_desc_equal(&d, &other) || wefti_desc_equal(&d, &typed) ||
                 wefti_desc_equal(&d, &scalar));
    assert_int_equal(weft_desc_of(WEFT_F32, 9, NULL).rank, -1);
    assert_int_equal(weft_desc_of(WEFT_F32, -1, NULL).rank, -1);
}

static void descriptors_from_outside(void **state) {
    (void)state;
    weft_desc good = shape(3, 0, INT64_MAX / 4, 1), bad = weft_desc_of(WEFT_F32, 9, NULL);
    assert_int_equal(wefti_desc_check(&good), WEFT_OK);
    assert_int_equal(wefti_desc_check(&bad), WEFT_E_SHAPE);
    bad = shape(2, 2, -1, 0);
    assert_int_equal(wefti_desc_check(&bad), WEFT_E_SHAPE);
    bad = shape(3, 1 << 30, 1 << 30, 8);
    assert_int_equal(wefti_desc_check(&bad), WEFT_E_SHAPE);
    bad = shape(1, 1, 0, 0);
    bad.dtype = (weft_dtype)77;
    assert_int_equal(wefti_desc_check(&bad), WEFT_E_ARG);
}

static void broadcasting(void **state) {
    (void)state;
    weft_desc a = shape(3, 2, 1, 4), b = shape(2, 3, 1, 0), out, expected = shape(3, 2, 3, 4);
    assert_int_equal(wefti_broadcast(&a, &b, &out), WEFT_OK);
    assert_true(wefti_desc_equal(&out, &expected));
    assert_int_equal(wefti_broadcast(&b, &a, &out), WEFT_OK);
    assert_true(wefti_desc_equal(&out, &expected));
    weft_desc scalar = shape(0, 0, 0, 0), zero = shape(1, 0, 0, 0), one = shape(1, 1, 0, 0);
    assert_int_equal(wefti_broadcast(&scalar, &a, &out), WEFT_OK);
    assert_true(wefti_desc_equal(&out, &a));
    assert_int_equal(wefti_broadcast(&one, &zero, &out), WEFT_OK);
    assert_int_equal(out.shape[0], 0);
    weft_desc four = shape(1, 4, 0, 0), three = shape(1, 3, 0, 0);
    assert_int_equal(wefti_broadcast(&four, &three, &out), WEFT_E_SHAPE);
    assert_int_equal(wefti_broadcast(&four, &zero, &out), WEFT_E_SHAPE);
}

static float bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Every half there is converts to f32 as its definition says, and back to itself. */
static void all_halves(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        float f = wefti_f16_to_f32((uint16_t)h);
        if (exponent == 31 && fraction) {
            assert_true(isnan(f));
            uint16_t back = wefti_f32_to_f16(f);
            assert_true((back & 0x7c00) == 0x7c00 && (back & 1023));
            continue;
        }
        double value = exponent == 31 ? INFINITY
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
        assert_true((double)f == (h & 0x8000 ? -value : value));
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(wefti_f32_to_f16(f), h);
    }
}

static void all_bfloats(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = wefti_bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(wefti_bf16_to_f32(wefti_f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(wefti_f32_to_bf16(f), h);
    }
    assert_true(
        isnan(wefti_bf16_to_f32(wefti_f32_to_bf16(bits_to_float(0x7f800001))))); /* not infinity */
}

/* Nearest, and to even between two: against the two neighbours, for random numbers and exact
 * halves. */
static void rounding(void **state) {
    (void)state;
    const uint64_t seed = test_seed(17);
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t bits = wefti_philox_u32(seed, 0, i);
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* between two bf16 */
        if (i % 3 == 1) bits = (bits & 0xffffe000u) | 0x1000u; /* between two f16 */
        if (i % 2)
            bits = (bits & 0x80ffffffu) |
                   (0x33000000u + (bits >> 4 & 0x14000000u)); /* in the range of f16 */
        float f = bits_to_float(bits);
        if (!isfinite(f)) continue;
        uint16_t b = wefti_f32_to_bf16(f), h = wefti_f32_to_f16(f);
        double distance = fabs((double)wefti_bf16_to_f32(b) - (double)f);
        for (int step = -1; step <= 1 && isfinite(wefti_bf16_to_f32(b)); step += 2) {
            if ((b & 0x7fff) == 0 && step < 0) continue;
            float other = wefti_bf16_to_f32((uint16_t)(b + step));
            if (!isfinite(other)) continue;
            double far = fabs((double)other - (double)f);
            assert_true(distance < far || (distance == far && !(b & 1)));
        }
        if (!isfinite(wefti_f16_to_f32(h))) {
            assert_true(fabs((double)f) >= 65520.0); /* half way to what would be the next */
            continue;
        }
        distance = fabs((double)wefti_f16_to_f32(h) - (double)f);
        for (int step = -1; step <= 1; step += 2) {
            if ((h & 0x7fff) == 0 && step < 0) continue;
            float other = wefti_f16_to_f32((uint16_t)(h + step));
            if (!isfinite(other)) continue;
            double far = fabs((double)other - (double)f);
            assert_true(distance < far || (distance == far && !(h & 1)));
        }
    }
}

static void conversions(void **state) {
    (void)state;
    static const double values[] = {0.0,     1.0,     -1.0, 2.0,  100.0, 255.0, 300.0,
                                    65535.0, 70000.0, -5.0, 1e10, -1e10, 1e30,  -1e30};
    for (int d = 0; d < WEFT_DTYPES; d++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            double cell = 0.0; /* room for any element, aligned */
            wefti_store((weft_dtype)d, &cell, 0, values[i]);
            double back = wefti_load((weft_dtype)d, &cell, 0), v = values[i];
            double low = d == WEFT_I32 ? INT32_MIN : d == WEFT_I64 ? -9223372036854775808.0 : 0.0;
            double high = d == WEFT_U8    ? 255.0
                          : d == WEFT_U16 ? 65535.0
                          : d == WEFT_I32 ? INT32_MAX
                                          : 9223372036854774784.0;
            if (d == WEFT_F64) assert_true(back == v);
            if (d == WEFT_F32) assert_true(back == (double)(float)v);
            if (d == WEFT_BOOL) assert_true(back == (v != 0.0 ? 1.0 : 0.0));
            if (!wefti_dtype_is_float((weft_dtype)d) && d != WEFT_BOOL)
                assert_true(back == (v < low ? low : v > high ? high : v)); /* saturated */
        }
    int32_t number = 5;
    wefti_store(WEFT_I32, &number, 0, (double)NAN);
    assert_int_equal(number, 0);
    float floats[] = {1.5f, -2.5f, 300.0f};
    uint8_t bytes[3];
    wefti_convert(WEFT_U8, bytes, WEFT_F32, floats, 3);
    assert_true(bytes[0] == 1 && bytes[1] == 0 && bytes[2] == 255);
    float copy[3];
    wefti_convert(WEFT_F32, copy, WEFT_F32, floats, 3);
    assert_memory_equal(copy, floats, sizeof copy);
    uint16_t halves[3];
    wefti_convert(WEFT_BF16, halves, WEFT_F32, floats, 3);
    wefti_convert(WEFT_F32, copy, WEFT_BF16, halves, 3);
    assert_true(copy[0] == 1.5f && copy[1] == -2.5f && copy[2] == 300.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(descriptors_from_outside),
        cmocka_unit_test(broadcasting),
        cmocka_unit_test(all_halves),
        cmocka_unit_test(all_bfloats),
        cmocka_unit_test(rounding),
        cmocka_unit_test(conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
