/* Secrets and proofs: published vectors, files that must be refused. */
#include "support.h"

#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "launch/auth.h"

static char *hex(const unsigned char digest[WEFTI_DIGEST_BYTES], char out[65]) {
    for (int i = 0; i < WEFTI_DIGEST_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return out;
}

/* FIPS 180-4 examples, and the million letters of its appendix. */
static void hashes_as_published(void **state) {
    (void)state;
    unsigned char d[WEFTI_DIGEST_BYTES];
    char text[65];
    wefti_sha256("", 0, d);
    assert_string_equal(hex(d, text),
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    wefti_sha256("abc", 3, d);
    assert_string_equal(hex(d, text),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    wefti_sha256(two, strlen(two), d);
    assert_string_equal(hex(d, text),
                        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *many = malloc(1000000);
    assert_non_null(many);
    memset(many, 'a', 1000000);
    wefti_sha256(many, 1000000, d);
    free(many);
    assert_string_equal(hex(d, text),
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

typedef struct vector {
    int key_byte, key_bytes; /* key_byte -1: the text */
    const char *key;
    int data_byte, data_bytes;
    const char *data, *mac;
} vector;
/* RFC 4231, test cases 1 to 4, 6 and 7 (5 is about cut MACs). */
static const vector vectors[] = {
    {0x0b, 20, NULL, -1, 8, "Hi There",
     "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {-1, 4, "Jefe", -1, 28, "what do ya want for nothing?",
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
    {0xaa, 20, NULL, 0xdd, 50, NULL,
     "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {-1, 25,
     "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17"
     "\x18\x19",
     0xcd, 50, NULL, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
    {0xaa, 131, NULL, -1, 54, "Test Using Larger Than Block-Size Key - Hash Key First",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    {0xaa, 131, NULL, -1, 152,
     "This is a test using a larger than block-size key and a larger than block-size data. The key "
     "needs to be hashed before being used by the HMAC algorithm.",
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
};

static void fill(unsigned char *out, int byte, int bytes, const char *text) {
    if (byte >= 0)
        memset(out, byte, (size_t)bytes);
    else
        memcpy(out, text, (size_t)bytes);
}

static void macs_as_published(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        unsigned char key[200], data[200], d[WEFTI_DIGEST_BYTES];
        char text[65];
        fill(key, v->key_byte, v->key_bytes, v->key);
        fill(data, v->data_byte, v->data_bytes, v->data);
        wefti_hmac_own(key, (size_t)v->key_bytes, data, (size_t)v->data_bytes, d);
        assert_string_equal(hex(d, text), v->mac);
        wefti_hmac(key, (size_t)v->key_bytes, data, (size_t)v->data_bytes, d);
        assert_string_equal(hex(d, text), v->mac);
    }
}

/* Our own code and OpenSSL's (where it is built in) agree on every length around the blocks. */
static void macs_agree(void **state) {
    (void)state;
    unsigned char key[150], data[300], a[WEFTI_DIGEST_BYTES], b[WEFTI_DIGEST_BYTES];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < sizeof key; i++) key[i] = (unsigned char)(i * 13 + 5);
    for (size_t n = 0; n <= sizeof data; n++) {
        wefti_hmac_own(key, n / 2, data, n, a);
        wefti_hmac(key, n / 2, data, n, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void compares_whole(void **state) {
    (void)state;
    unsigned char a[32] = {0}, b[32] = {0};
    assert_true(wefti_equal_secretly(a, b, sizeof a));
    for (int i = 0; i < 32; i++) {
        b[i] = 0x80;
        assert_false(wefti_equal_secretly(a, b, sizeof a));
        b[i] = 0;
    }
}

static void proofs_differ(void **state) {
    (void)state;
    wefti_secret one = {{1}}, two = {{2}};
    wefti_nonces n = {{0}, {0}}, swapped = {{0}, {0}};
    memset(n.member, 5, sizeof n.member);
    memset(swapped.scheduler, 5, sizeof swapped.scheduler);
    unsigned char d[10][WEFTI_DIGEST_BYTES];
    int count = 0;
    for (int what = 0; what < 4; what++) wefti_prove(&one, (wefti_proof)what, &n, d[count++]);
    wefti_prove(&two, WEFTI_PROOF_MEMBER, &n, d[count++]);
    wefti_prove(&one, WEFTI_PROOF_MEMBER, &swapped, d[count++]);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(d[i], d[j], WEFTI_DIGEST_BYTES);
    wefti_prove(&one, WEFTI_PROOF_MEMBER, &n, d[count]);
    assert_memory_equal(d[0], d[count], WEFTI_DIGEST_BYTES);
}

/* --- files */

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/weft_auth.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    return wefti_remove_tree(folder) < 0 ? -1 : 0;
}
static char *at(const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

static void refuses_files(void **state) {
    (void)state;
    char path[128], other[128];
    wefti_secret s;
    assert_int_equal(wefti_secret_read(at("missing", path), &s), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE(path);
    at("secret", path);
    assert_int_equal(wefti_secret_create(path), WEFT_OK);
    assert_int_equal(wefti_secret_create(path), WEFT_E_IO); /* never written over */
    assert_int_equal(wefti_secret_read(path, &s), WEFT_OK);
    static const mode_t bad[] = {0644, 0640, 0604, 0620, 0602, 0700, 0601};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(chmod(path, bad[i]), 0);
        assert_int_equal(wefti_secret_read(path, &s), WEFT_E_ARG);
        assert_non_null(strstr(weft_error_message(), "chmod 600"));
    }
    assert_int_equal(chmod(path, 0400), 0); /* stricter is fine */
    assert_int_equal(wefti_secret_read(path, &s), WEFT_OK);
    assert_int_equal(wefti_secret_read(folder, &s), WEFT_E_ARG);
    assert_int_equal(wefti_file_write(at("short", other), "0123456789", 10), WEFT_OK);
    assert_int_equal(chmod(other, 0600), 0);
    assert_int_equal(wefti_secret_read(other, &s), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "32 to 4096"));
    char large[WEFTI_SECRET_MAX + 2];
    memset(large, 'x', sizeof large);
    assert_int_equal(wefti_file_write(at("large", other), large, sizeof large), WEFT_OK);
    assert_int_equal(chmod(other, 0600), 0);
    assert_int_equal(wefti_secret_read(other, &s), WEFT_E_ARG);
    if (geteuid() == 0) { /* only root can make a file that is another's */
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(wefti_secret_read(path, &s), WEFT_E_ARG);
        assert_non_null(strstr(weft_error_message(), "12345"));
    } else
        print_message("SKIP: a file of another user (needs root)\n");
}

/* As Kubernetes mounts it: root's, read by a group of the process, behind links. */
static weft_status read_as(const char *path, gid_t group) {
    int code;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        wefti_secret s;
        if (setgroups(1, &group) || setgid(54321) || setuid(54321)) _exit(100);
        const weft_status status = wefti_secret_read(path, &s);
        _exit(status == WEFT_OK ? 0 : -(int)status);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_not_equal(WEXITSTATUS(code), 100);
    return (weft_status)-WEXITSTATUS(code);
}

static void reads_mounted_secrets_of_root(void **state) {
    enum { GROUP = 23456 };
    static const struct {
        mode_t mode;
        gid_t group;
        weft_status status;
    } cases[] = {
        {0440, GROUP, WEFT_OK},    {0440, GROUP + 1, WEFT_E_IO}, /* the kernel refuses it */
        {0444, GROUP, WEFT_E_ARG}, {0444, GROUP + 1, WEFT_E_ARG}, {0460, GROUP, WEFT_E_ARG},
        {0640, GROUP, WEFT_E_ARG}, {0450, GROUP, WEFT_E_ARG},     {0442, GROUP, WEFT_E_ARG},
    };
    char path[128], link[128];
    (void)state;
    if (geteuid() != 0) SKIP("a file of another user (needs root)");
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(mkdir(at("..2026", path), 0755), 0);
    assert_int_equal(wefti_secret_create(at("..2026/secret", path)), WEFT_OK);
    assert_int_equal(symlink("..2026", at("..data", link)), 0);
    assert_int_equal(symlink("..data/secret", at("secret", link)), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(chown(path, 0, GROUP), 0);
        assert_int_equal(chmod(path, cases[i].mode), 0);
        assert_int_equal(read_as(link, cases[i].group), cases[i].status);
    }
    /* a stranger's file is not root's */
    assert_int_equal(chown(path, 12345, GROUP), 0);
    assert_int_equal(chmod(path, 0440), 0);
    assert_int_equal(read_as(link, GROUP), WEFT_E_ARG);
}

static void reads_a_variable(void **state) {
    wefti_secret file, variable;
    char path[128], text[128] = "";
    (void)state;
    assert_int_equal(wefti_secret_create(at("secret", path)), WEFT_OK);
    FILE *from = fopen(path, "r");
    assert_non_null(from);
    assert_non_null(fgets(text, sizeof text, from));
    fclose(from);
    text[strcspn(text, "\n")] = '\0';
    assert_int_equal(unsetenv("WEFT_TEST_SECRET"), 0);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "WEFT_TEST_SECRET|secret",
                 wefti_secret_read("env:WEFT_TEST_SECRET", &variable));
    assert_int_equal(setenv("WEFT_TEST_SECRET", text, 1), 0);
    ASSERT_OK(wefti_secret_read(path, &file));
    ASSERT_OK(wefti_secret_find("env:WEFT_TEST_SECRET", folder, &variable, NULL));
    assert_memory_equal(&file, &variable, sizeof file); /* whether a newline ends it or not */
    assert_int_equal(setenv("WEFT_TEST_SECRET", "short", 1), 0);
    ASSERT_FAILS(WEFT_E_ARG, "env:WEFT_TEST_SECRET|32 to 4096",
                 wefti_secret_read("env:WEFT_TEST_SECRET", &variable));
    assert_int_equal(unsetenv("WEFT_TEST_SECRET"), 0);
}

static void finds_one_secret(void **state) {
    (void)state;
    char path[128], *where;
    struct stat st;
    wefti_secret first, second, named;
    assert_int_equal(wefti_secret_find("", folder, &first, &where), WEFT_OK);
    assert_string_equal(where, at(".weft/secret", path));
    assert_int_equal(stat(where, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(stat(at(".weft", path), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    wefti_free(where);
    assert_int_equal(wefti_secret_find("", folder, &second, NULL), WEFT_OK);
    assert_memory_equal(&first, &second, sizeof first);
    assert_int_equal(wefti_secret_create(at("named", path)), WEFT_OK);
    assert_int_equal(wefti_secret_find(path, folder, &named, NULL), WEFT_OK);
    assert_memory_not_equal(&first, &named, sizeof first);
    /* Not the other one. */
    assert_int_equal(wefti_secret_find(at("nothing", path), folder, &named, NULL),
                     WEFT_E_NOT_FOUND);
    assert_int_equal(wefti_secret_find("", "", &named, NULL), WEFT_E_ARG);
}

static void *prove_for_ever(void *begun) {
    unsigned char digest[WEFTI_DIGEST_BYTES];
    for (;;) {
        wefti_hmac("key", 3, "data", 4, digest);
        atomic_store((atomic_bool *)begun, true);
    }
    return NULL;
}

/* A program that ends without leaving its job keeps its exit code, even while a member's thread
 * runs the handshake. */
static void proofs_outlive_exit(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            static atomic_bool begun;
            pthread_t thread;
            if (pthread_create(&thread, NULL, prove_for_ever, &begun) != 0) _exit(1);
            while (!atomic_load(&begun)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            exit(7);
        }
        int end;
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_true(WIFEXITED(end));
        assert_int_equal(WEXITSTATUS(end), 7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_as_published),
        cmocka_unit_test(macs_as_published),
        cmocka_unit_test(macs_agree),
        cmocka_unit_test(compares_whole),
        cmocka_unit_test(proofs_differ),
        cmocka_unit_test(proofs_outlive_exit),
        cmocka_unit_test_setup_teardown(refuses_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(reads_mounted_secrets_of_root, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(reads_a_variable, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(finds_one_secret, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
