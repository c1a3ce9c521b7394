/* Rank tables: the documented forms are read, and whatever is wrong is refused with the field's
 * name. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "launch/rank_table.h"

/* The documented table of one host with eight cards. */
static const char one_host[] =
    "{\"version\": \"1.0\", \"server_count\": \"1\", \"server_list\": [{\"server_id\": "
    "\"10.155.111.140\", \"device\": ["
    "{\"device_id\": \"0\",\"device_ip\": \"192.1.27.6\",\"rank_id\": \"0\"},"
    "{\"device_id\": \"1\",\"device_ip\": \"192.2.27.6\",\"rank_id\": \"1\"},"
    "{\"device_id\": \"2\",\"device_ip\": \"192.3.27.6\",\"rank_id\": \"2\"},"
    "{\"device_id\": \"3\",\"device_ip\": \"192.4.27.6\",\"rank_id\": \"3\"},"
    "{\"device_id\": \"4\",\"device_ip\": \"192.1.27.7\",\"rank_id\": \"4\"},"
    "{\"device_id\": \"5\",\"device_ip\": \"192.2.27.7\",\"rank_id\": \"5\"},"
    "{\"device_id\": \"6\",\"device_ip\": \"192.3.27.7\",\"rank_id\": \"6\"},"
    "{\"device_id\": \"7\",\"device_ip\": \"192.4.27.7\",\"rank_id\": \"7\"}],"
    "\"host_nic_ip\": \"reserve\"}], \"status\": \"completed\"}";

#define DEVICE(id, rank)                                                                           \
    "{\"device_id\":\"" #id "\",\"device_ip\":\"192.1.1." #rank "\",\"rank_id\":\"" #rank "\"}"
#define SERVER(id, devices) "{\"server_id\":\"" id "\",\"device\":[" devices "]}"
#define TABLE(count, servers)                                                                      \
    "{\"version\":\"1.0\",\"server_count\":\"" #count "\",\"server_list\":[" servers               \
    "],\"status\":\"completed\"}"
#define PAIR DEVICE(0, 0) "," DEVICE(1, 1)
#define NEXT_PAIR DEVICE(0, 2) "," DEVICE(1, 3)
static const char two_hosts[] =
    TABLE(2, SERVER("10.0.0.1", PAIR) "," SERVER("10.0.0.2", NEXT_PAIR));

static wefti_rank_table *read_good(const char *text) {
    wefti_rank_table *table = NULL;
    weft_status status = wefti_rank_table_parse(text, (int64_t)strlen(text), &table);
    if (status < 0) print_error("%s\n", weft_error_message());
    assert_int_equal(status, WEFT_OK);
    return table;
}

static void refuse(const char *text, const char *facts) {
    wefti_rank_table *table = NULL;
    assert_int_equal(wefti_rank_table_parse(text, (int64_t)strlen(text), &table), WEFT_E_CORRUPT);
    assert_null(table);
    ASSERT_MESSAGE(facts);
}

static void test_one_host(void **state) {
    (void)state;
    wefti_rank_table *t = read_good(one_host);
    assert_int_equal(t->size, 8);
    assert_int_equal(t->server_count, 1);
    assert_string_equal(t->servers[0].address, "10.155.111.140");
    assert_int_equal(t->servers[0].devices, 8);
    assert_string_equal(t->ranks[5].device_ip, "192.2.27.7");
    assert_int_equal(t->ranks[5].device, 5);
    assert_in_range(t->port, 10000, 29999);
    assert_int_equal(wefti_rank_table_server(t, "10.155.111.140"), 0);
    assert_int_equal(wefti_rank_table_server(t, "10.155.111.14"), -1);
    wefti_rank_table_free(t);
}

static void test_two_hosts(void **state) {
    (void)state;
    wefti_rank_table *t = read_good(two_hosts);
    assert_int_equal(t->size, 4);
    assert_int_equal(t->ranks[2].server, 1);
    assert_int_equal(t->ranks[2].device, 0);
    assert_int_equal(t->servers[1].first_rank, 2);
    int port = t->port;
    wefti_rank_table_free(t);
    /* Servers in another order in the file, numbers as numbers: the same table. */
    t = read_good("{\"status\":\"completed\",\"server_list\":[{\"device\":[{\"rank_id\":3,\"device_"
                  "id\":1,\"device_ip\":\"192.1.1.3\"},{\"rank_id\":2,\"device_id\":0,\"device_"
                  "ip\":\"192.1.1.2\"}],\"server_id\":\"10.0.0.2\"}," SERVER(
                      "10.0.0.1", PAIR) "],\"server_count\":2,\"version\":\"1.0\"}");
    assert_int_equal(t->port, port);
    assert_string_equal(t->servers[0].id, "10.0.0.1");
    assert_int_equal(t->ranks[3].device, 1);
    wefti_rank_table_free(t);
    /* A different one has, most likely, another port. */
    t = read_good(TABLE(2, SERVER("10.0.0.1", PAIR) "," SERVER("10.0.0.3", NEXT_PAIR)));
    assert_int_not_equal(t->port, port);
    wefti_rank_table_free(t);
}

/* Order as texts: "10.0.0.10" comes before "10.0.0.9". */
static void test_order_is_of_texts(void **state) {
    (void)state;
    wefti_rank_table *t =
        read_good(TABLE(2, SERVER("10.0.0.9", NEXT_PAIR) "," SERVER("10.0.0.10", PAIR)));
    assert_string_equal(t->servers[0].id, "10.0.0.10");
    wefti_rank_table_free(t);
    refuse(TABLE(2, SERVER("10.0.0.9", PAIR) "," SERVER("10.0.0.10", NEXT_PAIR)),
           "\"10.0.0.10\"|ranks 0 to 1");
}

#define CLUSTER(id, servers)                                                                       \
    "{\"cluster_id\":\"" id "\",\"network_type\":\"ROCE\",\"az_id\":\"az\",\"region_id\":\"r\","   \
    "\"server_list\":[" servers "]}"
#define WIDE_SERVER(id, ip, rank)                                                                  \
    "{\"server_id\":\"" id "\",\"server_ip\":\"" ip "\",\"device\":[{\"device_id\":\"0\","         \
    "\"device_ip\":\"192.1.1.1\",\"dpu_ip\":\"192.9.9.9\",\"numa_id\":\"0\",\"rank_id\":\"" #rank  \
    "\"}]}"
#define WIDE(clusters)                                                                             \
    "{\"version\":\"1.0\",\"server_count\":\"2\",\"server_list\":[" WIDE_SERVER(                   \
        "node_0", "10.1.0.1", 0) "," WIDE_SERVER("node_1", "10.2.0.1",                             \
                                                 1) "],\"status\":\"completed\",\"cluster_list\":" \
                                                    "[" clusters "]}"
#define ID(id) "{\"server_id\":\"" id "\"}"

static void test_clusters(void **state) {
    (void)state;
    wefti_rank_table *t =
        read_good(WIDE(CLUSTER("a", ID("node_0")) "," CLUSTER("b", ID("node_1"))));
    assert_int_equal(t->size, 2);
    assert_string_equal(t->servers[1].address, "10.2.0.1");
    assert_int_equal(wefti_rank_table_server(t, "node_1"), 1);
    assert_int_equal(wefti_rank_table_server(t, "10.2.0.1"), 1);
    wefti_rank_table_free(t);
    refuse(WIDE(CLUSTER("a", ID("node_7"))), "cluster_list[0].server_list[0].server_id");
    refuse(WIDE(CLUSTER("a", ID("node_0")) "," CLUSTER("b", ID("node_0"))),
           "cluster_list[1].server_list[0].server_id|\"node_0\"|two clusters");
    refuse(WIDE(CLUSTER("a", "")), "cluster_list[0].server_list is empty");
    refuse(WIDE(CLUSTER("a", "7")), "cluster_list[0].server_list[0]|an object");
    refuse(WIDE("[]"), "cluster_list[0]|an object");
    refuse(WIDE(""), "cluster_list is empty");
}

static void test_ranks_are_refused(void **state) {
    (void)state;
    refuse(TABLE(1, SERVER("a", DEVICE(0, 0) "," DEVICE(1, 0))),
           "server_list[0].device[1].rank_id is 0, as is server_list[0].device[0].rank_id");
    refuse(TABLE(1, SERVER("a", DEVICE(0, 0) "," DEVICE(1, 2))),
           "server_list[0].device[1].rank_id is 2, but the 2 devices");
    refuse(TABLE(1, SERVER("a", DEVICE(0, 1))), "server_list[0].device[0].rank_id is 1");
    refuse(TABLE(2, SERVER("a", NEXT_PAIR) "," SERVER("b", PAIR)),
           "server_list[0].device[0].rank_id is 2|order of server_id|ranks 0 to 1");
    refuse(TABLE(2, SERVER("a", DEVICE(0, 0) "," DEVICE(1, 2)) "," SERVER(
                        "b", DEVICE(0, 1) "," DEVICE(1, 3))),
           "server_list[0].device[1].rank_id is 2|order of server_id|ranks 0 to 1");
    refuse(TABLE(1, SERVER("a", DEVICE(0, 0) "," DEVICE(0, 1))),
           "server_list[0]|two devices|device_id 0");
    refuse(TABLE(1, SERVER("a", DEVICE(0, -1))), "rank_id is \"-1\"");
    refuse(TABLE(1, SERVER("a", DEVICE(0, 99999999999))), "rank_id is \"99999999999\"");
    refuse(TABLE(1, SERVER("a", DEVICE(0, x))), "rank_id is \"x\"");
    refuse(TABLE(1, SERVER("a", DEVICE(, 0))), "device_id is \"\"");
    refuse(TABLE(1, SERVER("a", "{\"device_id\":\"0\",\"rank_id\":0.5}")),
           "server_list[0].device[0].rank_id");
    refuse(TABLE(1, SERVER("a", "{\"device_id\":\"0\",\"rank_id\":null}")),
           "server_list[0].device[0].rank_id");
    refuse(TABLE(1, SERVER("a", "{\"device_id\":\"0\",\"rank_id\":-1}")), "rank_id is -1");
}

static void test_servers_are_refused(void **state) {
    (void)state;
    refuse(TABLE(3, SERVER("a", PAIR) "," SERVER("b", NEXT_PAIR)), "server_count is 3");
    refuse(TABLE(x, SERVER("a", PAIR)), "server_count is \"x\"");
    refuse(TABLE(2, SERVER("a", PAIR) "," SERVER("a", NEXT_PAIR)),
           "server_list[1].server_id are both \"a\"");
    refuse(TABLE(1, SERVER("", PAIR)), "server_list[0].server_id is \"\"");
    refuse(TABLE(1, SERVER("a b", PAIR)), "server_list[0].server_id is \"a b\"");
    refuse(TABLE(1, SERVER("a", "")), "server_list[0].device is empty");
    refuse(TABLE(0, ""), "server_list is empty");
    refuse(TABLE(1, "7"), "server_list[0]|an object");
    refuse(TABLE(1, SERVER("a", "[]")), "server_list[0].device[0]|an object");
    refuse(TABLE(1, "{\"server_id\":\"a\",\"device\":{}}"), "server_list[0].device|a list");
    refuse(TABLE(1, "{\"server_id\":7,\"device\":[]}"), "server_list[0].server_id|a text");
    refuse(TABLE(1, "{\"server_id\":\"a\",\"server_ip\":[],\"device\":[" DEVICE(0, 0) "]}"),
           "server_list[0].server_ip|a text");
}

static void test_frame_is_refused(void **state) {
    (void)state;
    refuse("{\"version\":\"1.0\",\"server_count\":\"1\",\"server_list\":[" SERVER(
               "a", PAIR) "],\"status\":\"initializing\"}",
           "status is \"initializing\"");
    refuse("{\"version\":\"1.2\",\"server_count\":\"1\",\"server_list\":[" SERVER(
               "a", PAIR) "],\"status\":\"completed\"}",
           "version is \"1.2\"");
    refuse("{\"version\":1.0}", "version|a text");
    refuse("[]", "rank table|an object");
    refuse("", "");
    refuse("{\"version\":\"1.0\",\"version\":\"1.0\"}", "version");
    refuse("{\"version\":\"1.0\"", "");
}

/* Each field that must be there, taken out of a good table, is missed by name. */
static void test_missing_fields(void **state) {
    static const char *const fields[] = {"version",   "server_count", "server_list", "status",
                                         "server_id", "device",       "device_id",   "rank_id"};
    (void)state;
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        char text[sizeof two_hosts], quoted[40], message[60];
        memcpy(text, two_hosts, sizeof two_hosts);
        (void)snprintf(quoted, sizeof quoted, "\"%s\"", fields[f]);
        strstr(text, quoted)[1] = 'X'; /* another name */
        (void)snprintf(message, sizeof message, "%s|missing", fields[f]);
        refuse(text, message);
    }
}

/* Files cut anywhere or with any byte changed are refused or read; nothing else happens. */
static void test_damage(void **state) {
    (void)state;
    wefti_rank_table *t;
    char text[sizeof two_hosts];
    int64_t whole = (int64_t)strlen(two_hosts);
    for (int64_t cut = 0; cut < whole; cut++)
        assert_int_equal(wefti_rank_table_parse(two_hosts, cut, &t), WEFT_E_CORRUPT);
    for (int64_t at = 0; at < whole; at++) {
        memcpy(text, two_hosts, sizeof two_hosts);
        text[at] ^= 1;
        weft_status status = wefti_rank_table_parse(text, whole, &t);
        if (status >= 0)
            wefti_rank_table_free(t);
        else
            assert_int_equal(status, WEFT_E_CORRUPT);
    }
}

/* Many hosts are read; absurd sizes are refused before memory is taken. */
static void test_large(void **state) {
    (void)state;
    enum { HOSTS = 512, EACH = 8 };
    wefti_text text = {0};
    wefti_text_add(&text, "{\"version\":\"1.0\",\"server_count\":%d,\"server_list\":[", HOSTS);
    for (int h = 0; h < HOSTS; h++) {
        wefti_text_add(&text, "%s{\"server_id\":\"host%04d\",\"device\":[", h ? "," : "", h);
        for (int d = 0; d < EACH; d++)
            wefti_text_add(&text, "%s{\"device_id\":\"%d\",\"rank_id\":\"%d\"}", d ? "," : "", d,
                           h * EACH + d);
        wefti_text_add(&text, "]}");
    }
    wefti_text_add(&text, "],\"status\":\"completed\"}");
    assert_false(text.failed);
    wefti_rank_table *t = read_good(text.data);
    assert_int_equal(t->size, HOSTS * EACH);
    assert_int_equal(t->ranks[4095].server, 511);
    wefti_rank_table_free(t);
    wefti_text_free(&text);
    t = NULL;
    assert_int_equal(wefti_rank_table_parse("{}", (int64_t)1 << 40, &t), WEFT_E_CORRUPT);
    assert_int_equal(wefti_rank_table_load("/dev/zero", &t), WEFT_E_IO);
    assert_int_equal(wefti_rank_table_load("/none/table.json", &t), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE("/none/table.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_order_is_of_texts),
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_ranks_are_refused),
        cmocka_unit_test(test_servers_are_refused),
        cmocka_unit_test(test_frame_is_refused),
        cmocka_unit_test(test_missing_fields),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
