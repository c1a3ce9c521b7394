/* The least time of a small message by TLS.
 *
 *   bench/tls_pair listen|connect ADDRESS PORT [plain]
 *
 * There are two processes and one TCP connection. In an exchange both sides write 64 bytes at once.
 * Then each reads the other's, as in an all-reduce of one small message. They never sleep. With
 * `plain` there is no TLS. After 100,000 exchanges each prints the median microseconds of one. What
 * the data plane needs more than that is its own. */
#include <stdio.h>

#ifdef WEFT_HAVE_OPENSSL

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/psk/psk.h"
#include "stepper.h"

enum { BYTES = 64, BATCH = 100, SAMPLES = 1000, CALLS = 5000 };

typedef struct pair {
    int fd;
    SSL *ssl; /* NULL: plain */
} pair;

static void fail(const char *what) {
    fprintf(stderr, "bench/tls_pair: %s: %s\n", what, errno ? strerror(errno) : wefti_psk_reason());
    exit(1);
}

static int dial(const struct sockaddr_in *to, bool listens) {
    const int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    if (listens) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (const struct sockaddr *)to, sizeof *to) || listen(fd, 1)) fail("listen");
        const int accepted = accept(fd, NULL, NULL);
        close(fd);
        fd = accepted;
    } else {
        for (int k = 0; connect(fd, (const struct sockaddr *)to, sizeof *to); k++) {
            if (errno != ECONNREFUSED || k == CALLS) fail("connect");
            close(fd);
            usleep(1000);
            fd = socket(AF_INET, SOCK_STREAM, 0);
        }
    }
    if (fd < 0) fail("accept");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static SSL *secure(int fd, bool listens) {
    static unsigned char key[WEFTI_PSK_KEY] = {1};
    SSL_CTX *context;
    if (wefti_psk_create(0, &context) < 0) fail("OpenSSL");
    SSL *ssl = SSL_new(context);
    if (!ssl || !SSL_set_app_data(ssl, key) || !SSL_set_fd(ssl, fd)) fail("OpenSSL");
    errno = 0;
    if ((listens ? SSL_accept(ssl) : SSL_connect(ssl)) != 1) fail("handshake");
    SSL_CTX_free(context);
    return ssl;
}

/* Bytes moved; 0: none yet. */
static int put(const pair *p, const char *data, int bytes) {
    const int n =
        p->ssl ? SSL_write(p->ssl, data, bytes) : (int)send(p->fd, data, (size_t)bytes, 0);
    if (n <= 0 && !p->ssl && errno != EAGAIN) fail("send");
    return n > 0 ? n : 0;
}
static int take(const pair *p, char *data, int bytes) {
    const int n = p->ssl ? SSL_read(p->ssl, data, bytes) : (int)recv(p->fd, data, (size_t)bytes, 0);
    if (n == 0 || (n < 0 && !p->ssl && errno != EAGAIN)) fail("the other side is gone");
    if (n < 0 && p->ssl && SSL_get_error(p->ssl, n) != SSL_ERROR_WANT_READ) fail("read");
    return n > 0 ? n : 0;
}

static void exchange(const pair *p) {
    char out[BYTES] = {0}, in[BYTES];
    for (int at = 0; at < BYTES;) at += put(p, out + at, BYTES - at);
    for (int at = 0; at < BYTES;) at += take(p, in + at, BYTES - at);
}

int main(int count, char **words) {
    static double samples[SAMPLES];
    if (count < 4) {
        fprintf(stderr, "usage: bench/tls_pair listen|connect ADDRESS PORT [plain]\n");
        return 2;
    }
    const bool listens = !strcmp(words[1], "listen");
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[3]))};
    if (inet_pton(AF_INET, words[2], &to.sin_addr) != 1) fail(words[2]);
    pair p = {.fd = dial(&to, listens)};
    if (count < 5) p.ssl = secure(p.fd, listens);
    const int one = 1;
    if (ioctl(p.fd, FIONBIO, &one)) fail("ioctl");
    int n = 0;
    for (int64_t last = wefti_now_ns(); n < SAMPLES; n++) {
        for (int k = 0; k < BATCH; k++) exchange(&p);
        const int64_t now = wefti_now_ns();
        samples[n] = 1e-3 * (double)(now - last) / BATCH;
        last = now;
    }
    printf("%.2f\n", stepper_median(samples, n));
    SSL_free(p.ssl);
    close(p.fd);
    return 0;
}

#else

int main(void) {
    fprintf(stderr, "bench/tls_pair needs OpenSSL\n");
    return 77;
}

#endif
