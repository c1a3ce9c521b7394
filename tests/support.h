/* Shared parts of all tests: cmocka, checks of a status, checks of the key facts of a message,
 * reasons for skips, and seeds. */
#ifndef WEFT_TESTS_SUPPORT_H
#define WEFT_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sanitized.h"
#include "weft/status.h"

#if SANITIZED
void __sanitizer_set_death_callback(void (*call)(void));
#endif

/* Fails with the thread's error message if a call returns an error. */
#define ASSERT_OK(expr)                                                                            \
    do {                                                                                           \
        weft_status status_ = (expr);                                                              \
        if (status_ < 0) fail_msg("%s: %s", #expr, weft_error_message());                          \
    } while (0)

/* A call returns the error `code`, and the message has all `facts` (see has_facts). */
#define ASSERT_FAILS(code, facts, expr)                                                            \
    do {                                                                                           \
        weft_status got_ = (expr);                                                                 \
        if (got_ != (code))                                                                        \
            fail_msg("%s: %s: %s", #expr, weft_status_text(got_), weft_error_message());           \
        ASSERT_FACTS(weft_error_message(), facts);                                                 \
    } while (0)

#define ASSERT_STATUS(code, expr) assert_int_equal((expr), (code))
#define ASSERT_MESSAGE(facts) ASSERT_FACTS(weft_error_message(), facts)
#define ASSERT_FACTS(text, facts)                                                                  \
    do {                                                                                           \
        if (!has_facts(text, facts)) fail_msg("\"%s\" lacks a fact of \"%s\"", text, facts);       \
    } while (0)

/* Waits until a condition holds. Fails after a time that is too long for any machine, however busy.
 */
#define ASSERT_SOON(condition)                                                                     \
    do {                                                                                           \
        const time_t end_ = time(NULL) + 900;                                                      \
        while (!(condition)) {                                                                     \
            if (time(NULL) > end_) fail_msg("not within 15 minutes: %s", #condition);              \
            (void)usleep(1000);                                                                    \
        }                                                                                          \
    } while (0)

/* Prints why a test is skipped, and skips it. `.ci/skips` lists the reasons that CI accepts. */
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        print_message("SKIP: " __VA_ARGS__);                                                       \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

/* Whether three words of English follow each other. A test that asks for such a fact would break
 * when somebody improves the words of the message. */
static inline bool is_prose(const char *fact, size_t length) {
    int words = 0, letters = 0;
    for (size_t i = 0; i <= length; i++) {
        const char c = i < length ? fact[i] : ' ';
        if (islower((unsigned char)c) || (c == '\'' && letters)) {
            letters++;
        } else if (c == ' ' && letters) {
            if (++words == 3) return true;
            letters = 0;
        } else if (!(c == ',' || c == ';' || c == ':') || !letters) {
            words = letters = 0;
            while (i < length && fact[i] != ' ') i++;
        }
    }
    return false;
}

/* Whether a text has all facts of a list: names, numbers, places, divided by '|'. A fact stands in
 * the text as a whole word, so that "rank 1" is not found in "rank 12". The order does not matter,
 * and the words between facts do not. */
static inline bool has_facts(const char *text, const char *facts) {
    for (const char *fact = facts; *fact;) {
        const size_t length = strcspn(fact, "|");
        bool found = length == 0;
        if (is_prose(fact, length)) fail_msg("\"%.*s\" is prose: name facts", (int)length, fact);
        for (const char *at = text; !found && *at; at++) {
            if (strncmp(at, fact, length) != 0) continue;
            const char before = at > text ? at[-1] : ' ', after = at[length];
            found = !(isalnum((unsigned char)before) && isalnum((unsigned char)fact[0])) &&
                    !(isalnum((unsigned char)after) && isalnum((unsigned char)fact[length - 1]));
        }
        if (!found) return false;
        fact += length + (fact[length] == '|');
    }
    return true;
}

/* The seed of a random test: WEFT_TEST_SEED, or `otherwise`. It is printed, so that a failure can
 * be repeated. */
static inline uint64_t test_seed(uint64_t otherwise) {
    const char *given = getenv("WEFT_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 0) : otherwise;
    print_message("seed %llu (WEFT_TEST_SEED sets it)\n", (unsigned long long)seed);
    return seed;
}

/* A seed that differs from run to run. */
static inline uint64_t test_new_seed(void) {
    return test_seed((uint64_t)time(NULL));
}

/* The seed of the loop TEST_SEEDS that the process is in, if it is in one. */
static uint64_t test_loop_seed;
static pid_t test_loop_process;

static inline void test_say_loop_seed(void) {
    if (test_loop_process != getpid()) return;
    test_loop_process = 0;
    (void)fprintf(stderr, "failed with seed %llu: WEFT_TEST_SEED=%llu repeats it\n",
                  (unsigned long long)test_loop_seed, (unsigned long long)test_loop_seed);
}

/* An assertion leaves the loop without an end; so this loop is still noted when the next one
 * begins, when the program ends, or when a sanitizer ends it. */
static inline uint64_t test_begin_seeds(uint64_t first) {
    static bool prepared;
    const char *given = getenv("WEFT_TEST_SEED");
    test_say_loop_seed();
    if (!prepared) (void)atexit(test_say_loop_seed);
#if SANITIZED
    if (!prepared) __sanitizer_set_death_callback(test_say_loop_seed);
#endif
    prepared = true;
    return given ? strtoull(given, NULL, 0) : first;
}

/* Whether loops have one seed only: then nothing is known of how often something occurs. */
static inline bool test_one_seed(void) {
    return getenv("WEFT_TEST_SEED") != NULL;
}

static inline bool test_next_seed(uint64_t seed, uint64_t first, uint64_t count) {
    const char *given = getenv("WEFT_TEST_SEED");
    const bool more = given ? seed == strtoull(given, NULL, 0) : seed - first < count;
    test_loop_seed = seed;
    test_loop_process = more ? getpid() : 0;
    return more;
}

/* Repeats a random test for `count` seeds from `first` on, or for WEFT_TEST_SEED alone. If the test
 * fails inside the loop, the program prints the seed. A loop is left by its end only, never by
 * break or return. */
#define TEST_SEEDS(seed, first, count)                                                             \
    for (uint64_t seed = test_begin_seeds(first); test_next_seed(seed, first, count); seed++)

/* Cuts the memory that a program itself takes out of its text or JSON: it depends on how many
 * strategies the plan lists. */
static inline void cut_program_bytes(char *text) {
    static const char *const parts[][2] = {{"; the program itself ", "\n"},
                                           {"\"program_bytes\": ", ", "}};
    for (int i = 0; i < 2; i++) {
        char *at = strstr(text, parts[i][0]), *end = at ? strstr(at, parts[i][1]) : NULL;
        if (end) memmove(at, end, strlen(end) + 1);
    }
}

#endif
