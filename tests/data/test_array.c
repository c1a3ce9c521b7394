/* IDX, npy and token shards: every element type, every truncation, every kind of damage. */
#include "data_fixture.h"

#include "data/array.h"

#ifdef WEFT_HAVE_ZLIB
#include <zlib.h>
#endif

typedef weft_status parser(const char *path, const unsigned char *bytes, int64_t count,
                           wefti_array *out);

/* Only the whole file parses; one byte more is refused as well. The bytes lie in a block of their
 * exact size so that the address sanitizer sees any byte read beyond. */
static void refuse_all_truncations(parser *parse, const buffer *b) {
    for (int64_t count = 0; count <= b->count + 1; count++) {
        unsigned char *exact = malloc(count ? (size_t)count : 1);
        assert_non_null(exact);
        memset(exact, 0, (size_t)count);
        memcpy(exact, b->bytes, (size_t)(count < b->count ? count : b->count));
        wefti_array array;
        weft_status status = parse("file", exact, count, &array);
        if (count == b->count) {
            if (status < 0) fail_msg("%s", weft_error_message());
        } else {
            assert_int_equal(status, WEFT_E_CORRUPT);
            ASSERT_MESSAGE("file: ");
        }
        free(exact);
    }
}

static void idx_reads_every_type(void **state) {
    (void)state;
    static const struct {
        int code, bytes;
        uint64_t bits; /* of 5, or of -2 where there is a sign */
        double value, scaled;
    } types[] = {
        {0x08, 1, 5, 5, 5.0 / 255},          {0x09, 1, 0xFE, -2, -2.0 / 127},
        {0x0B, 2, 0xFFFE, -2, -2.0 / 32767}, {0x0C, 4, 0xFFFFFFFE, -2, -2.0 / 2147483647.0},
        {0x0D, 4, 0xC0000000, 0, -2.0},      {0x0E, 8, 0xC000000000000000, 0, -2.0}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        buffer b = {0};
        put_idx(&b, types[i].code, types[i].bytes, 2, (uint32_t[]){2, 3});
        b.count -= types[i].bytes; /* replace the last element */
        put_big(&b, types[i].bits, types[i].bytes);
        wefti_array array;
        ASSERT_OK(wefti_idx_parse("file", b.bytes, b.count, &array));
        assert_int_equal(array.rank, 2);
        assert_int_equal(array.shape[0], 2);
        assert_int_equal(array.shape[1], 3);
        assert_int_equal(array.elems, 6);
        float scaled[6];
        wefti_array_scaled(&array, 0, 6, scaled);
        assert_true(scaled[4] == 0.0f && scaled[5] == (float)types[i].scaled);
        if (wefti_element_is_integer(array.element)) {
            int64_t value;
            wefti_array_integers(&array, 5, 1, &value);
            assert_int_equal(value, (int64_t)types[i].value);
        }
        refuse_all_truncations(wefti_idx_parse, &b);
    }
}

static void idx_refuses_damage(void **state) {
    (void)state;
    wefti_array array;
    buffer b = {0};
    put_idx(&b, 0x08, 1, 1, (uint32_t[]){3});
    b.bytes[0] = 1;
    ASSERT_FAILS(WEFT_E_CORRUPT, "01 00", wefti_idx_parse("f", b.bytes, b.count, &array));
    b.bytes[0] = 0;
    b.bytes[2] = 0x0A;
    ASSERT_FAILS(WEFT_E_CORRUPT, "0x0a", wefti_idx_parse("f", b.bytes, b.count, &array));
    b.bytes[2] = 0x08;
    b.bytes[3] = 0;
    ASSERT_FAILS(WEFT_E_CORRUPT, "0 dimensions", wefti_idx_parse("f", b.bytes, b.count, &array));
    b.bytes[3] = 9;
    ASSERT_FAILS(WEFT_E_CORRUPT, "9 dimensions", wefti_idx_parse("f", b.bytes, b.count, &array));
    buffer huge = {0};
    put_big(&huge, 0x0E08, 4);
    for (int i = 0; i < 8; i++) put_big(&huge, 0xFFFFFFFF, 4);
    ASSERT_FAILS(WEFT_E_CORRUPT, "64 bits", wefti_idx_parse("f", huge.bytes, huge.count, &array));
    buffer lie = {0};
    put_idx(&lie, 0x08, 1, 1, (uint32_t[]){3});
    lie.bytes[4] = 0xFF;
    ASSERT_FAILS(WEFT_E_CORRUPT, "promises", wefti_idx_parse("f", lie.bytes, lie.count, &array));
}

static const char npy_header[] = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }";

static buffer npy_of(int major, const char *descr, const char *shape, const void *data,
                     size_t bytes) {
    char header[300];
    (void)snprintf(header, sizeof header, npy_header, descr, shape);
    buffer b = {0};
    put_npy(&b, major, header, data, bytes);
    return b;
}

static void npy_reads_every_type(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        int bytes;
        uint64_t bits;
        int64_t value;
        double scaled;
    } types[] = {{"<f4", 4, 0xC0000000, 0, -2.0},
                 {"<f8", 8, 0xC000000000000000, 0, -2.0},
                 {"<f2", 2, 0xC000, 0, -2.0},
                 {"|i1", 1, 0xFE, -2, -2.0 / 127},
                 {"<i1", 1, 0xFE, -2, -2.0 / 127},
                 {"<i2", 2, 0xFFFE, -2, -2.0 / 32767},
                 {"<i4", 4, 0xFFFFFFFE, -2, -2.0 / 2147483647.0},
                 {"<i8", 8, 0xFFFFFFFFFFFFFFFE, -2, -2.0 / 9223372036854775807.0},
                 {"|u1", 1, 0xFE, 254, 254.0 / 255},
                 {"<u2", 2, 0xFFFE, 65534, 65534.0 / 65535},
                 {"<u4", 4, 0xFFFFFFFE, 4294967294, 4294967294.0 / 4294967295.0},
                 {"|b1", 1, 1, 1, 1.0}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int major = 1; major <= 3; major++) {
            unsigned char data[3 * 8] = {0};
            memcpy(data + 2 * types[i].bytes, &types[i].bits, (size_t)types[i].bytes);
            buffer b = npy_of(major, types[i].descr, "3,", data, 3 * (size_t)types[i].bytes);
            wefti_array array;
            ASSERT_OK(wefti_npy_parse("file", b.bytes, b.count, &array));
            assert_int_equal(array.rank, 1);
            assert_int_equal(array.elems, 3);
            float scaled[3];
            wefti_array_scaled(&array, 0, 3, scaled);
            assert_true(scaled[0] == 0.0f && scaled[2] == (float)types[i].scaled);
            if (wefti_element_is_integer(array.element)) {
                int64_t value;
                wefti_array_integers(&array, 2, 1, &value);
                assert_int_equal(value, types[i].value);
                int32_t token;
                wefti_array_tokens(&array, 2, 1, &token);
                assert_int_equal(token, value < 0 || value > INT32_MAX ? -1 : value);
            }
            refuse_all_truncations(wefti_npy_parse, &b);
        }
}

static void npy_header_forms(void **state) {
    (void)state;
    static const char *const good[] = {
        "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3)}",
        "{\"shape\":(2,3,),\"fortran_order\":False,\"descr\":\"<i2\"}",
        "{ 'fortran_order' : False , 'descr' : '<i2' , 'shape' : ( 6 , ) }",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 2, 3), }"};
    short data[6] = {0, 0, 0, 0, 0, -7};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        buffer b = {0};
        put_npy(&b, 1, good[i], data, sizeof data);
        wefti_array array;
        ASSERT_OK(wefti_npy_parse("file", b.bytes, b.count, &array));
        assert_int_equal(array.elems, 6);
        int64_t last;
        wefti_array_integers(&array, 5, 1, &last);
        assert_int_equal(last, -7);
    }
    /* a scalar, and no elements */
    wefti_array array;
    buffer scalar = npy_of(1, "<i2", "", data, 2), none = npy_of(1, "<i2", "0, 5", data, 0);
    ASSERT_OK(wefti_npy_parse("file", scalar.bytes, scalar.count, &array));
    assert_int_equal(array.rank, 0);
    assert_int_equal(array.elems, 1);
    ASSERT_OK(wefti_npy_parse("file", none.bytes, none.count, &array));
    assert_int_equal(array.elems, 0);
}

/* 100 i + 10 j + k at [i, j, k] of [2, 3, 4], by rows and by columns, in both orders of bytes. */
static void npy_orders(void **state) {
    (void)state;
    enum { I = 2, J = 3, K = 4, ALL = I * J * K };
    for (int form = 0; form < 4; form++) {
        bool columns = form & 1, big = form & 2;
        char header[128];
        unsigned char data[ALL][2];
        for (int i = 0; i < I; i++)
            for (int j = 0; j < J; j++)
                for (int k = 0; k < K; k++) {
                    int value = 100 * i + 10 * j + k;
                    int at = columns ? i + I * (j + J * k) : (i * J + j) * K + k;
                    data[at][big] = (unsigned char)value;
                    data[at][!big] = (unsigned char)(value >> 8);
                }
        snprintf(header, sizeof header,
                 "{'descr': '%ci2', 'fortran_order': %s, 'shape': (2, 3, 4), }", big ? '>' : '<',
                 columns ? "True" : "False");
        buffer b = {0};
        put_npy(&b, 1, header, data, sizeof data);
        wefti_array array;
        ASSERT_OK(wefti_npy_parse("file", b.bytes, b.count, &array));
        int64_t integers[ALL];
        float scaled[ALL - 5];
        int32_t tokens[ALL - 7];
        wefti_array_integers(&array, 0, ALL, integers);
        wefti_array_scaled(&array, 5, ALL - 5, scaled);
        wefti_array_tokens(&array, 7, ALL - 7, tokens);
        for (int i = 0; i < ALL; i++) {
            int value = 100 * (i / (J * K)) + 10 * (i / K % J) + i % K;
            assert_int_equal(integers[i], value);
            if (i >= 5) assert_true(scaled[i - 5] == (float)(value / 32767.0));
            if (i >= 7) assert_int_equal(tokens[i - 7], value);
        }
    }
}

static void npy_refuses(void **state) {
    (void)state;
    static const struct {
        const char *header;
        weft_status status;
        const char *says;
    } bad[] = {
        {"{'descr': '|O', 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL,
         "Python objects"},
        {"{'descr': '|i2', 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL, "'|i2'"},
        {"{'descr': '>u8', 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL, "'>u8'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL, "''"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL, "'<c8'"},
        {"{'descr': [('a', '<i2')], 'fortran_order': False, 'shape': (6,), }", WEFT_E_NO_IMPL,
         "records"},
        {"{'descr': '<i2', 'fortran_order': true, 'shape': (6,), }", WEFT_E_CORRUPT,
         "True or False"},
        {"{'descr': '<i2', 'fortran_order': 0, 'shape': (6,), }", WEFT_E_CORRUPT, "True or False"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (6), }", WEFT_E_CORRUPT, "shape"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (-6,), }", WEFT_E_CORRUPT, "size"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (5,), }", WEFT_E_CORRUPT, "promises"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (7,), }", WEFT_E_CORRUPT, "promises"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (99999999999999999999,), }",
         WEFT_E_CORRUPT, "64 bits"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (9223372036854775807,2), }",
         WEFT_E_CORRUPT, "64 bits"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6), }", WEFT_E_NO_IMPL,
         "more than 8"},
        {"{'descr': '<i2', 'fortran_order': False, }", WEFT_E_CORRUPT, "lacks"},
        {"{'descr': '<i2', 'descr': '<i2', 'fortran_order': False, 'shape': (6,), }",
         WEFT_E_CORRUPT, "twice"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (6,), 'x': 1}", WEFT_E_CORRUPT,
         "unknown"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (6,), } x", WEFT_E_CORRUPT, "byte 68"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (6,)", WEFT_E_CORRUPT, "'}'"},
        {"{'descr': '<i2\\x', 'fortran_order': False, 'shape': (6,), }", WEFT_E_CORRUPT,
         "not part"},
        {"", WEFT_E_CORRUPT, "'{'"}};
    static const short data[6];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        buffer b = {0};
        put_npy(&b, 1, bad[i].header, data, sizeof data);
        wefti_array array;
        ASSERT_FAILS(bad[i].status, bad[i].says, wefti_npy_parse("file", b.bytes, b.count, &array));
    }
    buffer version = npy_of(1, "<i2", "6,", data, sizeof data);
    wefti_array array;
    version.bytes[6] = 4;
    ASSERT_FAILS(WEFT_E_NO_IMPL, "version 4.0",
                 wefti_npy_parse("file", version.bytes, version.count, &array));
    buffer longer = npy_of(2, "<i2", "6,", data, sizeof data);
    longer.bytes[11] = 0x80; /* a header of two gigabytes */
    ASSERT_FAILS(WEFT_E_CORRUPT, "header of",
                 wefti_npy_parse("file", longer.bytes, longer.count, &array));
}

static void shards(void **state) {
    (void)state;
    wefti_array array;
    buffer narrow = {0}, wide = {0};
    put_shard(&narrow, 20240520, 1, 3, (uint16_t[]){1, 50256, 65535}, 6);
    put_shard(&wide, 20240801, 7, 2, (uint32_t[]){128000, 0xFFFFFFFF}, 8);
    refuse_all_truncations(wefti_shard_parse, &narrow);
    refuse_all_truncations(wefti_shard_parse, &wide);
    int32_t tokens[3];
    ASSERT_OK(wefti_shard_parse("file", narrow.bytes, narrow.count, &array));
    wefti_array_tokens(&array, 0, 3, tokens);
    assert_int_equal(tokens[1], 50256);
    assert_int_equal(tokens[2], 65535);
    ASSERT_OK(wefti_shard_parse("file", wide.bytes, wide.count, &array));
    wefti_array_tokens(&array, 0, 2, tokens);
    assert_int_equal(tokens[0], 128000);
    assert_int_equal(tokens[1], -1);
    static const struct {
        int32_t magic, version, count;
        const char *says;
    } bad[] = {{20240326, 3, 3, "token|shard"},
               {20240520, 2, 3, "version 2"},
               {20240520, 1, -1, "-1 tokens"},
               {20240520, 1, 2, "2 tokens"},
               {20240520, 1, INT32_MAX, "2147483647"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        buffer b = {0};
        put_shard(&b, bad[i].magic, bad[i].version, bad[i].count, (uint16_t[]){1, 2, 3}, 6);
        assert_true(wefti_shard_parse("file", b.bytes, b.count, &array) < 0);
        ASSERT_MESSAGE(bad[i].says);
    }
}

#ifdef WEFT_HAVE_ZLIB

static buffer packed(const buffer *plain) {
    buffer out = {0};
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)plain->bytes;
    z.avail_in = (unsigned)plain->count;
    z.next_out = out.bytes;
    z.avail_out = sizeof out.bytes;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.count = (int64_t)z.total_out;
    deflateEnd(&z);
    return out;
}

static weft_status unpack_and_parse(const char *path, const unsigned char *bytes, int64_t count,
                                    wefti_array *out) {
    unsigned char *data;
    int64_t unpacked;
    WEFT_TRY(wefti_idx_unpack(path, bytes, count, &data, &unpacked));
    weft_status status = wefti_idx_parse(path, data, unpacked, out);
    wefti_free(data);
    return status;
}

static void gzip(void **state) {
    (void)state;
    buffer plain = {0};
    put_idx(&plain, 0x0B, 2, 3, (uint32_t[]){3, 2, 5});
    buffer b = packed(&plain);
    refuse_all_truncations(unpack_and_parse, &b);
    /* two members behind one another are one file */
    buffer head = {0}, tail = {0};
    put_bytes(&head, plain.bytes, 9);
    put_bytes(&tail, plain.bytes + 9, (size_t)plain.count - 9);
    buffer first = packed(&head), second = packed(&tail);
    put_bytes(&first, second.bytes, (size_t)second.count);
    wefti_array array;
    ASSERT_OK(unpack_and_parse("file", first.bytes, first.count, &array));
    /* every flipped bit is found by the checksum, or changes nothing: a few bits fill the last byte
     */
    int harmless = 0;
    for (int64_t i = 10 * 8; i < b.count * 8; i++) {
        buffer flipped = b;
        flipped.bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        unsigned char *data;
        int64_t bytes;
        weft_status status = wefti_idx_unpack("file", flipped.bytes, flipped.count, &data, &bytes);
        if (status < 0) {
            assert_int_equal(status, WEFT_E_CORRUPT);
            continue;
        }
        assert_int_equal(bytes, plain.count);
        assert_memory_equal(data, plain.bytes, (size_t)bytes);
        wefti_free(data);
        harmless++;
    }
    assert_true(harmless < 8);
}

static void a_packed_bomb_is_refused(void **state) {
    (void)state;
    buffer plain = {0}, shorter = {0}, longer = {0};
    put_big(&plain, 0x0803, 4);
    for (int i = 0; i < 3; i++) put_big(&plain, 0xFFFFF, 4);
    buffer b = packed(&plain);
    wefti_array array;
    ASSERT_FAILS(WEFT_E_CORRUPT, "cannot hold", unpack_and_parse("file", b.bytes, b.count, &array));
    put_idx(&longer, 0x08, 1, 1, (uint32_t[]){5});
    put_bytes(&longer, "x", 1);
    b = packed(&longer);
    ASSERT_FAILS(WEFT_E_CORRUPT, "end", unpack_and_parse("file", b.bytes, b.count, &array));
    put_idx(&shorter, 0x08, 1, 1, (uint32_t[]){5});
    shorter.count--;
    b = packed(&shorter);
    ASSERT_FAILS(WEFT_E_CORRUPT, "ends after", unpack_and_parse("file", b.bytes, b.count, &array));
}

static void faults(void **state) {
    (void)state;
    buffer plain = {0};
    put_idx(&plain, 0x08, 1, 1, (uint32_t[]){5});
    buffer b = packed(&plain);
    const char *path = put_file("a.gz", b.bytes, (size_t)b.count);
    for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
        for (int64_t n = 0, reached = 1; reached; n++) {
            wefti_fault_arm((wefti_fault_kind)kind, n, false, 0);
            wefti_array_file file;
            weft_status status = wefti_array_open(path, WEFTI_ARRAY_IDX, &file);
            reached = wefti_fault_count((wefti_fault_kind)kind) > n;
            disarm_faults();
            assert_int_equal(status < 0, reached);
            if (status == WEFT_OK) {
                assert_int_equal(file.array.elems, 5);
                wefti_array_close(&file);
            }
        }
}

#endif

/* A file of another format: what it is, and what to do. */
static void other_formats_are_named(void **state) {
    (void)state;
    static const struct {
        const char *begins;
        const char *idx, *npy, *shard; /* NULL: the format's own file, which is too short */
    } rows[] = {
        {"\x89PNG\r\n\x1a\n....", "PNG|npy", "PNG|npy", "PNG|npy"},
        {"\xff\xd8\xff\xe0........", "JPEG|npy", "JPEG|npy", "JPEG|npy"},
        {"PK\003\004........", "zip", "zip", "zip"},
        {"\x93NUMPY......", "NumPy|data.format: npy", NULL, "NumPy|data.format: npy"},
        {"\x88\xd8\x34\x01\x01\0\0\0....", "shard|data.format: tokens", "shard|data.format: tokens",
         NULL},
        {"%PDF-1.7....", "PDF", "PDF", "PDF"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const unsigned char *bytes = (const unsigned char *)rows[i].begins;
        wefti_array array;
        ASSERT_FAILS(WEFT_E_CORRUPT, rows[i].idx, wefti_idx_parse("f", bytes, 12, &array));
        const weft_status npy = wefti_npy_parse("f", bytes, 12, &array);
        if (rows[i].npy) ASSERT_FAILS(WEFT_E_CORRUPT, rows[i].npy, npy);
        const weft_status shard = wefti_shard_parse("f", bytes, 12, &array);
        if (rows[i].shard) ASSERT_FAILS(WEFT_E_CORRUPT, rows[i].shard, shard);
        assert_true(npy < 0 && shard < 0);
        wefti_error_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(idx_reads_every_type),
        cmocka_unit_test(idx_refuses_damage),
        cmocka_unit_test(npy_reads_every_type),
        cmocka_unit_test(npy_header_forms),
        cmocka_unit_test(npy_orders),
        cmocka_unit_test(npy_refuses),
        cmocka_unit_test(shards),
#ifdef WEFT_HAVE_ZLIB
        cmocka_unit_test(gzip),
        cmocka_unit_test(a_packed_bomb_is_refused),
        cmocka_unit_test_setup_teardown(faults, data_setup, data_teardown),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
