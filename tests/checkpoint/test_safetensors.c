/* safetensors: the rules of the format one by one, files by the reference writer, round trips,
 * failures. */
#include "checkpoint/safetensors.h"

#include "fixture.h"

/* A file in memory from its header and the number of bytes behind it. */
static weft_status parse(const char *header, size_t header_bytes, size_t data_bytes,
                         wefti_safetensors **out) {
    static unsigned char file[1 << 20];
    assert_true(8 + header_bytes + data_bytes <= sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) file[8 + header_bytes + i] = (unsigned char)i;
    return wefti_safetensors_parse(file, (int64_t)(8 + header_bytes + data_bytes), out);
}

static void accepts(const char *header, size_t data_bytes) {
    wefti_safetensors *file = NULL;
    ASSERT_OK(parse(header, strlen(header), data_bytes, &file));
    wefti_safetensors_close(file);
}

static void refuses(const char *header, size_t data_bytes, const char *why) {
    wefti_safetensors *file = NULL;
    weft_status status = parse(header, strlen(header), data_bytes, &file);
    if (status != WEFT_E_CORRUPT) fail_msg("%.100s was not refused (%d)", header, status);
    ASSERT_MESSAGE(why);
    assert_null(file);
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static void legal_files(void **state) {
    (void)state;
    accepts("{}", 0);
    accepts("{}      ", 0);
    accepts("{\"a\":" T("F32", "2,3", 0, 24) "}", 24);
    accepts("{\"b\":" T("U8", "3", 4, 7) ",\"a\":" T("F32", "", 0, 4) "}  ", 7);
    accepts("{\"z\":" T("F32", "0,9", 4, 4) ",\"a\":" T("F32", "1", 0, 4) "}", 4);
    accepts("{\"y\":" T("F32", "0", 0, 0) ",\"z\":" T("F32", "0", 0, 0) "}", 0);
    accepts("{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T("BOOL", "1", 0, 1) "}", 1);
    accepts("{ \"a\" :\n" T("F4", "4", 0, 2) "}", 2);
    accepts("{\"\":" T("F32", "1,1,1,1,1,1,1,1,1,1", 0, 4) "}", 4);
    accepts("{\"data_offsets\":{\"data_offsets\":[0,4],\"shape\":[1],\"dtype\":\"I32\"}}", 4);
}

static void broken_headers(void **state) {
    (void)state;
    refuses("", 0, "from { to }");
    refuses("   ", 0, "from { to }");
    refuses(" {}", 0, "from { to }");
    refuses("{}\n", 0, "from { to }");
    refuses("{}\t ", 0, "from { to }");
    refuses("[]", 0, "from { to }");
    refuses("{", 0, "from { to }");
    refuses("{}{}", 0, "not valid JSON");
    refuses("{\"a\":}", 0, "not valid JSON");
    refuses("{\"a\":1}", 0, "object");
    refuses("{\"a\":[]}", 0, "object");
    refuses("{\"\xff\":" T("F32", "1", 0, 4) "}", 4, "not valid JSON");
    refuses("{\"\xc0\xaf\":" T("F32", "1", 0, 4) "}", 4, "not valid JSON");
    refuses("{\"\\u0000\":" T("F32", "1", 0, 4) "}", 4, "not valid JSON");
    refuses("{\"\\ud800\":" T("F32", "1", 0, 4) "}", 4, "not valid JSON");
    refuses("{\"a\":" T("F32", "1", 0, 4) ",\"a\":" T("F32", "1", 0, 4) "}", 4, "duplicate");
    refuses("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
            "duplicate");
    refuses("{\"__metadata__\":{\"a\":1}}", 0, "text");
    refuses("{\"__metadata__\":[]}", 0, "object");
    refuses("{\"__metadata__\":{\"a\":[[[[[[[[1]]]]]]]]}}", 0, "nested deeper");
    wefti_safetensors *file = NULL;
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_safetensors_parse("1234567", 7, &file));
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_safetensors_parse("\3\0\0\0\0\0\0\0{}", 10, &file));
    ASSERT_MESSAGE("cut off");
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_safetensors_parse("\1\xe1\xf5\5\0\0\0\0{}", 10, &file));
    ASSERT_MESSAGE("100000001");
    ASSERT_STATUS(WEFT_E_CORRUPT,
                  wefti_safetensors_parse("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &file));
    assert_null(file);
}

static void broken_tensors(void **state) {
    (void)state;
    refuses("{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing");
    refuses("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" is missing");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "\"data_offsets\" is missing");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4,
            "members");
    refuses("{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "text");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, "list");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 4, "1 values, not 2");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,4]}}", 4,
            "3 values, not 2");
    refuses("{\"a\":" T("f32", "1", 0, 4) "}", 4, "unknown dtype");
    refuses("{\"a\":" T("F33", "1", 0, 4) "}", 4, "unknown dtype");
    refuses("{\"a\":" T("F32", "-1", 0, 4) "}", 4, "whole");
    refuses("{\"a\":" T("F32", "1.0", 0, 4) "}", 4, "whole");
    refuses("{\"a\":" T("F32", "true", 0, 4) "}", 4, "whole");
    refuses("{\"a\":" T("F32", "1", 0, 5) "}", 5, "needs 4 bytes");
    refuses("{\"a\":" T("F32", "1", 4, 0) "}", 4, "needs 4 bytes");
    refuses("{\"a\":" T("F32", "1", 0, 4.0) "}", 4, "whole");
    refuses("{\"a\":" T("F4", "3", 0, 2) "}", 2, "bytes");
    refuses("{\"a\":" T("F32", "4611686018427387904,4", 0, 0) "}", 0, "fit");
    refuses("{\"a\":" T("F32", "99999999999999999999", 0, 0) "}", 0, "whole");
    refuses("{\"a\":" T("U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
                        0, 1) "}",
            1, "more than 32 values");
}

/* No holes, no overlap, nothing behind. */
static void broken_tilings(void **state) {
    (void)state;
    refuses("{}", 1, "0 bytes|1");
    refuses("{\"a\":" T("F32", "1", 0, 4) "}", 5, "5");
    refuses("{\"a\":" T("F32", "1", 0, 4) "}", 3, "3");
    refuses("{\"a\":" T("F32", "1", 1, 5) "}", 5, "begins at 1");
    refuses("{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 5, 9) "}", 9, "begins at 5");
    refuses("{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 3, 7) "}", 7, "begins at 3");
    refuses("{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 0, 4) "}", 4, "begins at 0");
    refuses("{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "0", 2, 2) "}", 4, "begins at 2");
    refuses("{\"a\":" T("U8", "0", 9223372036854775807, 9223372036854775807) "}", 0, "begins at");
}

static void limits(void **state) {
    (void)state;
    static char header[900000];
    wefti_safetensors *file = NULL;
    int n = snprintf(header, sizeof header, "{\"");
    memset(header + n, 'n', 4096);
    snprintf(header + n + 4096, 100, "\":" T("U8", "1", 0, 1) "}");
    accepts(header, 1);
    memset(header + n, 'n', 4097);
    snprintf(header + n + 4097, 100, "\":" T("U8", "1", 0, 1) "}");
    refuses(header, 1, "4097 bytes");
    /* brackets nested as deep as the header is long must not reach the parser's stack */
    memset(header, '[', sizeof header);
    memcpy(header, "{\"a\":", 5);
    header[sizeof header - 1] = '}';
    ASSERT_STATUS(WEFT_E_CORRUPT, parse(header, sizeof header, 0, &file));
    ASSERT_MESSAGE("8");
}

/* What the reference's Python package 0.8.0 writes for {"w": f32[2,1] = 1, 2; "b": bf16[3]; "s":
 * f16 scalar 0.5; "e": f32[0,3]; "m": bool[1]} with metadata {"format": "pt"}. */
static const unsigned char reference_file[] = {
#include "reference_file.inc"
};

static void reference_writer(void **state) {
    (void)state;
    wefti_safetensors *file = NULL;
    ASSERT_OK(wefti_safetensors_parse(reference_file, sizeof reference_file, &file));
    assert_int_equal(wefti_safetensors_count(file), 5);
    const wefti_safetensors_entry *w = wefti_safetensors_find(file, "w");
    assert_non_null(w);
    float values[2];
    memcpy(values, BYTES_OF(w), sizeof values);
    assert_true(values[0] == 1.0f && values[1] == 2.0f);
    assert_int_equal(w->desc.rank, 2);
    const wefti_safetensors_entry *b = wefti_safetensors_find(file, "b");
    assert_int_equal(b->desc.dtype, WEFT_BF16);
    assert_int_equal(b->bytes, 6);
    const wefti_safetensors_entry *s = wefti_safetensors_find(file, "s");
    assert_int_equal(s->desc.dtype, WEFT_F16);
    assert_int_equal(s->desc.rank, 0);
    assert_memory_equal(BYTES_OF(s), "\x00\x38", 2);
    assert_int_equal(wefti_safetensors_find(file, "e")->bytes, 0);
    assert_string_equal(wefti_safetensors_find(file, "m")->dtype, "BOOL");
    assert_null(wefti_safetensors_find(file, "absent"));
    int64_t pairs = 0;
    const wefti_safetensors_pair *metadata = wefti_safetensors_metadata(file, &pairs);
    assert_int_equal(pairs, 1);
    assert_string_equal(metadata[0].key, "format");
    assert_string_equal(metadata[0].value, "pt");
    wefti_safetensors_close(file);
}

/* Legal in the format, but nothing that weft computes with: listed, not representable. */
static void foreign_dtypes(void **state) {
    (void)state;
    const char *header =
        "{\"a\":" T("F8_E4M3", "4", 0, 4) ",\"b\":" T("F32", "1,1,1,1,1,1,1,1,1", 4, 8) "}";
    wefti_safetensors *file = NULL;
    ASSERT_OK(parse(header, strlen(header), 8, &file));
    assert_int_equal(wefti_safetensors_find(file, "a")->desc.rank, -1);
    assert_string_equal(wefti_safetensors_find(file, "a")->dtype, "F8_E4M3");
    assert_int_equal(wefti_safetensors_find(file, "b")->desc.rank, -1);
    assert_int_equal(wefti_safetensors_find(file, "b")->bytes, 4);
    wefti_safetensors_close(file);
}

enum { ITEMS = 12 };
static uint64_t random_seed;

/* Random tensors of all dtypes; returns how many. Data from one pool of bytes. */
static int64_t random_items(uint64_t round, wefti_safetensors_item items[ITEMS],
                            char names[ITEMS][32], const unsigned char *pool) {
    int64_t count = wefti_philox_u32(random_seed, round, 0) % (ITEMS + 1);
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)(i + 1) * 16;
        weft_desc desc = {.dtype =
                              (weft_dtype)(wefti_philox_u32(random_seed, round, at) % WEFT_DTYPES),
                          .rank = (int)(wefti_philox_u32(random_seed, round, at + 1) % 4)};
        for (int d = 0; d < desc.rank; d++)
            desc.shape[d] = wefti_philox_u32(random_seed, round, at + 2 + (uint64_t)d) % 5;
        snprintf(names[i], sizeof names[i], "t%u.\"%lld\"\\\n\xe2\x82\xac",
                 wefti_philox_u32(random_seed, round, at + 7) % 100, (long long)i);
        items[i] = (wefti_safetensors_item){.name = names[i], .desc = desc, .data = pool + 7 * i};
    }
    return count;
}

static void round_trips(void **state) {
    const fixture *f = *state;
    const char *path = path_in(f->root, "x.safetensors");
    unsigned char pool[2000];
    for (uint64_t i = 0; i < sizeof pool; i++)
        pool[i] = (unsigned char)wefti_philox_u32(random_seed, 1, i);
    for (uint64_t round = 0; round < 200; round++) {
        wefti_safetensors_item items[ITEMS];
        char names[ITEMS][32];
        int64_t count = random_items(round, items, names, pool);
        const wefti_safetensors_pair metadata = {"k\t", "v\"\x01"};
        ASSERT_OK(wefti_safetensors_write(path, items, count, &metadata, round % 2));
        wefti_safetensors *file = NULL;
        ASSERT_OK(wefti_safetensors_open(path, &file));
        assert_int_equal(wefti_safetensors_count(file), count);
        assert_int_equal(wefti_safetensors_header_bytes(file) % 8, 0);
        for (int64_t i = 0; i < count; i++) {
            const wefti_safetensors_entry *e = wefti_safetensors_find(file, items[i].name);
            assert_non_null(e);
            assert_int_equal(e->bytes, weft_desc_bytes(&items[i].desc));
            assert_int_equal(e->desc.dtype, items[i].desc.dtype);
            assert_int_equal(e->desc.rank, items[i].desc.rank);
            for (int d = 0; d < e->desc.rank; d++)
                assert_int_equal(e->desc.shape[d], items[i].desc.shape[d]);
            assert_memory_equal(BYTES_OF(e), items[i].data, (size_t)e->bytes);
            assert_int_equal((size_t)e->at % weft_dtype_bytes(e->desc.dtype), 0);
        }
        int64_t pairs = 0;
        const wefti_safetensors_pair *read = wefti_safetensors_metadata(file, &pairs);
        assert_int_equal(pairs, round % 2);
        if (pairs) assert_string_equal(read[0].value, metadata.value);
        wefti_safetensors_close(file);
    }
}

static void refused_to_write(void **state) {
    const fixture *f = *state;
    const char *path = path_in(f->root, "x.safetensors");
    float x = 1;
    const weft_desc scalar = {WEFT_F32, 0, {0}};
    wefti_safetensors_item two[2] = {{"a", scalar, &x}, {"a", scalar, &x}};
    ASSERT_STATUS(WEFT_E_ARG, wefti_safetensors_write(path, two, 2, NULL, 0));
    ASSERT_MESSAGE("named \"a\"");
    two[0].name = "__metadata__";
    ASSERT_STATUS(WEFT_E_ARG, wefti_safetensors_write(path, two, 1, NULL, 0));
    two[0].name = "\xed\xa0\x80"; /* a surrogate */
    ASSERT_STATUS(WEFT_E_ARG, wefti_safetensors_write(path, two, 1, NULL, 0));
    ASSERT_MESSAGE("not UTF-8");
    static char name[4098];
    memset(name, 'x', 4097);
    two[0].name = name;
    ASSERT_STATUS(WEFT_E_ARG, wefti_safetensors_write(path, two, 1, NULL, 0));
    two[0] = (wefti_safetensors_item){"n", {WEFT_F32, 1, {-1}}, &x};
    ASSERT_STATUS(WEFT_E_SHAPE, wefti_safetensors_write(path, two, 1, NULL, 0));
    assert_false(wefti_exists(path));
}

/* Fail each allocation in turn: a clean error, and never one that looks
 * like damage. */
static void allocations_fail(void **state) {
    (void)state;
    int64_t nth = 0;
    for (;; nth++) {
        wefti_safetensors *file = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = wefti_safetensors_parse(reference_file, sizeof reference_file, &file);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status >= 0) {
            wefti_safetensors_close(file);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(nth > 10);
}

static void missing_file(void **state) {
    const fixture *f = *state;
    wefti_safetensors *file = NULL;
    ASSERT_STATUS(WEFT_E_NOT_FOUND, wefti_safetensors_open(path_in(f->root, "absent"), &file));
    put_file(path_in(f->root, "empty"), "", 0);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_safetensors_open(path_in(f->root, "empty"), &file));
    ASSERT_MESSAGE("/empty: 0 bytes");
}

int main(void) {
    random_seed = test_seed(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_files),
        cmocka_unit_test(broken_headers),
        cmocka_unit_test(broken_tensors),
        cmocka_unit_test(broken_tilings),
        cmocka_unit_test(limits),
        cmocka_unit_test(reference_writer),
        cmocka_unit_test(foreign_dtypes),
        cmocka_unit_test_setup_teardown(round_trips, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(refused_to_write, fixture_begin, fixture_end),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test_setup_teardown(missing_file, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
