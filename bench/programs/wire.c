/* Client for MCP servers that times every call with little overhead of its own.
 *
 *   wire start COUNT PROGRAM ARGUMENT...   starts a server COUNT times, one after the other. Prints for each: nanoseconds
 *                                          to its answer to `initialize`, of CPU until its end, bytes of the answer
 *   wire stdio PROGRAM ARGUMENT...         starts a server and keeps it
 *   wire http PORT PATH SESSIONS THREADS   opens sessions over Streamable HTTP, each on its own connection
 *   wire sse PORT PATH                     opens a session over HTTP+SSE of 2024
 *
 * The last three print `ready PID`, then obey lines of the form `METHOD WARM COUNT PARAMS`: each session makes WARM
 * requests, then COUNT timed ones. Each thread goes round its share of the sessions. The reply is three lines: `done
 * BYTES`, the nanoseconds of each timed request, and the last answer. Any failure prints `failed REASON` and ends wire.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define HELLO                                                                               \
    "{\"protocolVersion\":\"%s\",\"capabilities\":{},\"clientInfo\":{\"name\":\"bench\",\"version\":\"1\"}}"
#define VERSION "2025-06-18"
#define SSE_VERSION "2024-11-05"
/* A number that no text in an answer contains by chance. */
#define FIRST_ID 7041001L
#define EXIT_PATIENCE_MS 5000

static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void fail(const char *format, ...) {
    va_list words;
    va_start(words, format);
    fputs("failed ", stdout);
    vprintf(format, words);
    putchar('\n');
    fflush(stdout);
    _exit(1);
}

/* Bytes with a zero after the last one. */
struct buffer {
    char *bytes;
    size_t length, room;
};

static void reserve(struct buffer *buffer, size_t more) {
    if (buffer->length + more + 1 > buffer->room) {
        buffer->room = 2 * (buffer->length + more + 1);
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) fail("out of memory");
    }
}

static void append(struct buffer *buffer, const char *bytes, size_t length) {
    reserve(buffer, length);
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    buffer->bytes[buffer->length] = 0;
}

/* What was received from a descriptor and not used yet. */
struct reader {
    int fd;
    struct buffer received;
    size_t used;
};

static size_t unread(const struct reader *reader) {
    return reader->received.length - reader->used;
}

static int receive(struct reader *reader) {
    struct buffer *received = &reader->received;
    if (reader->used > 0) {
        memmove(received->bytes, received->bytes + reader->used, unread(reader));
        received->length -= reader->used;
        reader->used = 0;
    }
    reserve(received, 65536);
    ssize_t count = read(reader->fd, received->bytes + received->length, received->room - received->length - 1);
    if (count <= 0) return 0;
    received->length += count;
    received->bytes[received->length] = 0;
    return 1;
}

/* Returns a line without its newline, or NULL at the end. It is valid until the next call. */
static char *read_line(struct reader *reader) {
    size_t searched = 0;
    for (;;) {
        char *start = reader->received.bytes + reader->used;
        size_t length = unread(reader);
        char *end = length > searched ? memchr(start + searched, '\n', length - searched) : NULL;
        if (end) {
            *end = 0;
            reader->used += end - start + 1;
            return start;
        }
        searched = length;
        if (!receive(reader)) return NULL;
    }
}

static void move_bytes(struct reader *reader, size_t count, struct buffer *to) {
    while (unread(reader) < count)
        if (!receive(reader)) fail("the server ended in the middle of an answer");
    append(to, reader->received.bytes + reader->used, count);
    reader->used += count;
}

enum transport { STDIO, HTTP, SSE };

struct session {
    enum transport transport;
    pid_t server;
    int port;
    char path[256], post_path[256], headers[512];
    /* The pipe from the server, or the connection that requests go to. */
    struct reader answers;
    int requests;
    /* The event stream of SSE. */
    struct reader events;
    struct buffer message, body;
    int closing;
    long last_id;
};

static void send_all(int fd, const char *bytes, size_t length) {
    while (length > 0) {
        ssize_t count = write(fd, bytes, length);
        if (count <= 0) fail("the server does not read");
        bytes += count;
        length -= count;
    }
}

/* Returns the message with this id, without what precedes it on its line, or NULL. */
static char *find_answer(char *text, long id) {
    char marks[2][32];
    snprintf(marks[0], sizeof marks[0], "\"id\":%ld", id);
    snprintf(marks[1], sizeof marks[1], "\"id\": %ld", id);
    for (int n = 0; n < 2; n++) {
        char *found = strstr(text, marks[n]);
        if (!found) continue;
        char *start = found;
        while (start > text && start[-1] != '\n') start--;
        char *brace = strchr(start, '{');
        return brace && brace < found ? brace : NULL;
    }
    return NULL;
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail("cannot connect to port %d", port);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void reconnect(struct session *session) {
    if (session->requests > 0) close(session->requests);
    session->requests = session->answers.fd = connect_to(session->port);
    session->answers.used = session->answers.received.length = 0;
    session->closing = 0;
}

/* Servers close connections that were idle for some seconds. */
static int is_closed(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Adds one chunk to the body. Returns 0 for the last one. */
static int read_chunk(struct reader *reader, struct buffer *body) {
    char *line = read_line(reader);
    if (!line) fail("the event stream ended");
    size_t length = strtoul(line, NULL, 16);
    struct buffer end = {0};
    move_bytes(reader, length, body);
    move_bytes(reader, 2, &end);
    free(end.bytes);
    return length > 0;
}

struct head {
    int status, is_chunked, is_stream;
    long length;
};

/* Reads the head of a response; keeps the session id for later requests. */
static struct head read_head(struct session *session, struct reader *reader) {
    struct head head = {.length = -1};
    char *line = read_line(reader);
    if (!line || sscanf(line, "HTTP/1.%*d %d", &head.status) != 1) fail("no response");
    while ((line = read_line(reader)) && *line != '\r' && *line) {
        line[strcspn(line, "\r")] = 0;
        char *value = strchr(line, ':');
        if (!value) continue;
        *value++ = 0;
        value += strspn(value, " ");
        if (!strcasecmp(line, "content-length")) head.length = atol(value);
        if (!strcasecmp(line, "transfer-encoding")) head.is_chunked = !strcasecmp(value, "chunked");
        if (!strcasecmp(line, "connection")) session->closing = !strcasecmp(value, "close");
        if (!strcasecmp(line, "mcp-session-id"))
            snprintf(session->headers, sizeof session->headers, "Mcp-Session-Id: %.400s\r\nMCP-Protocol-Version: " VERSION "\r\n", value);
    }
    return head;
}

static void read_response(struct session *session) {
    session->body.length = 0;
    reserve(&session->body, 1);
    session->body.bytes[0] = 0;
    struct head head = read_head(session, &session->answers);
    if (head.is_chunked) {
        while (read_chunk(&session->answers, &session->body)) {
        }
    } else if (head.length > 0) {
        move_bytes(&session->answers, head.length, &session->body);
    } else if (head.length < 0 && head.status != 202 && head.status != 204) {
        session->closing = 1;
        do move_bytes(&session->answers, unread(&session->answers), &session->body);
        while (receive(&session->answers));
    }
    if (head.status >= 300) fail("status %d: %.300s", head.status, session->body.bytes);
}

static void post(struct session *session, const char *message, size_t length) {
    char head[1024];
    if (session->closing) reconnect(session);
    int count = snprintf(head, sizeof head,
                         "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                         "Accept: application/json, text/event-stream\r\n%sContent-Length: %zu\r\n\r\n",
                         session->transport == SSE ? session->post_path : session->path, session->port, session->headers, length);
    session->message.length = 0;
    append(&session->message, head, count);
    append(&session->message, message, length);
    send_all(session->requests, session->message.bytes, session->message.length);
}

/* Reads the event stream up to an answer, which stays in the body of the session. */
static char *await_event(struct session *session, long id) {
    session->body.length = 0;
    for (;;) {
        read_chunk(&session->events, &session->body);
        char *found = find_answer(session->body.bytes, id);
        if (found && session->body.bytes[session->body.length - 1] == '\n') return found;
    }
}

static void notify(struct session *session, const char *text) {
    if (session->transport == STDIO) return send_all(session->requests, text, strlen(text));
    post(session, text, strlen(text) - 1);
    read_response(session);
}

/* Sends a request and returns the line with its answer. */
static char *request(struct session *session, const char *method, const char *params) {
    static __thread struct buffer text;
    long id = session->last_id = session->last_id ? session->last_id + 1 : FIRST_ID;
    text.length = 0;
    reserve(&text, strlen(method) + strlen(params) + 100);
    text.length = sprintf(text.bytes, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"method\":\"%s\",\"params\":%s}\n", id, method, params);
    char *answer = NULL;
    if (session->transport == STDIO) {
        send_all(session->requests, text.bytes, text.length);
        /* Notifications and requests of the server come in between. */
        while (!answer) {
            char *line = read_line(&session->answers);
            if (!line) fail("the server ended");
            answer = find_answer(line, id);
        }
        return answer;
    }
    post(session, text.bytes, text.length - 1);
    if (session->transport == SSE) return await_event(session, id);
    read_response(session);
    answer = find_answer(session->body.bytes, id);
    if (!answer) fail("no answer: %.300s", session->body.bytes);
    answer[strcspn(answer, "\r\n")] = 0;
    return answer;
}

static void check(const char *answer) {
    if (!strstr(answer, "\"result\":") || strstr(answer, "\"isError\":true")) fail("%.400s", answer);
}

/* Returns the size of the answer to `initialize`. */
static size_t initialize(struct session *session) {
    char hello[256];
    snprintf(hello, sizeof hello, HELLO, session->transport == SSE ? SSE_VERSION : VERSION);
    char *answer = request(session, "initialize", hello);
    check(answer);
    size_t length = strlen(answer) + 1;
    if (session->transport == SSE) read_response(session);
    return length;
}

static void open_stdio(struct session *session, char **words) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) fail("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&session->server, words[0], &actions, NULL, words, environ) != 0) fail("cannot start %s", words[0]);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    session->transport = STDIO;
    session->requests = to[1];
    session->answers.fd = from[0];
}

/* Returns the nanoseconds of CPU that the server and the children it waited for have used. */
static long long close_stdio(struct session *session) {
    struct rusage usage;
    close(session->requests);
    for (int waited = 0; wait4(session->server, NULL, WNOHANG, &usage) == 0; waited++) {
        if (waited == EXIT_PATIENCE_MS) kill(session->server, SIGKILL);
        usleep(1000);
    }
    close(session->answers.fd);
    free(session->answers.received.bytes);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000LL + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000LL;
}

static void open_http(struct session *session, int port, const char *path) {
    session->transport = HTTP;
    session->port = port;
    snprintf(session->path, sizeof session->path, "%s", path);
    reconnect(session);
}

/* The first event names the path to post to. */
static void open_sse(struct session *session, int port, const char *path) {
    char text[512];
    open_http(session, port, path);
    session->transport = SSE;
    session->events.fd = connect_to(port);
    int count = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n\r\n", path, port);
    send_all(session->events.fd, text, count);
    struct head head = read_head(session, &session->events);
    if (head.status != 200 || !head.is_chunked) fail("status %d of the event stream", head.status);
    char *address = NULL;
    while (!address) {
        read_chunk(&session->events, &session->body);
        address = strstr(session->body.bytes, "data:");
    }
    address += 5 + strspn(address + 5, " ");
    snprintf(session->post_path, sizeof session->post_path, "%.*s", (int)strcspn(address, "\r\n"), address);
}

static void measure_starts(int count, char **words) {
    while (count-- > 0) {
        struct session session = {0};
        long long began = now();
        open_stdio(&session, words);
        size_t length = initialize(&session);
        long long taken = now() - began;
        printf("%lld %lld %zu\n", taken, close_stdio(&session), length);
        fflush(stdout);
    }
}

/* One line of standard input, and the sessions among which a thread goes round. */
struct share {
    struct session *sessions;
    int first, step, end;
    char *method, *params;
    long warm, count;
    long long *taken;
    struct buffer last;
};

static void *work(void *argument) {
    struct share *share = argument;
    long next = 0;
    for (int n = share->first; n < share->end; n += share->step) {
        struct session *session = &share->sessions[n];
        if (session->transport != STDIO && is_closed(session->requests)) reconnect(session);
    }
    for (long turn = 0; turn < share->warm + share->count; turn++)
        for (int n = share->first; n < share->end; n += share->step) {
            struct session *session = &share->sessions[n];
            long long began = now();
            char *answer = request(session, share->method, share->params);
            if (turn >= share->warm) share->taken[next++] = now() - began;
            check(answer);
            if (turn + 1 == share->warm + share->count) {
                share->last.length = 0;
                append(&share->last, answer, strcspn(answer, "\r\n"));
            }
            if (session->transport == SSE) read_response(session);
        }
    return NULL;
}

static void obey(struct session *sessions, int session_count, int thread_count, char *line) {
    char method[64];
    long warm, count;
    int params;
    if (sscanf(line, "%63s %ld %ld %n", method, &warm, &count, &params) != 3) fail("not understood: %.100s", line);
    struct share shares[thread_count];
    pthread_t threads[thread_count];
    long share_size = (session_count / thread_count + 1) * count + 1;
    for (int n = 0; n < thread_count; n++) {
        shares[n] = (struct share){.sessions = sessions, .first = n, .step = thread_count, .end = session_count,
                                   .method = method, .params = line + params, .warm = warm, .count = count};
        shares[n].taken = calloc(share_size, sizeof(long long));
        if (n > 0 && pthread_create(&threads[n], NULL, work, &shares[n]) != 0) fail("no thread");
    }
    work(&shares[0]);
    for (int n = 1; n < thread_count; n++) pthread_join(threads[n], NULL);
    printf("done %zu\n", shares[0].last.length + 1);
    for (int n = 0; n < thread_count; n++)
        for (long at = 0; at < share_size && shares[n].taken[at]; at++) printf("%lld ", shares[n].taken[at]);
    printf("\n%s\n", shares[0].last.bytes);
    fflush(stdout);
    for (int n = 0; n < thread_count; n++) {
        free(shares[n].taken);
        free(shares[n].last.bytes);
    }
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    const char *mode = count > 1 ? words[1] : "";
    if (count >= 4 && !strcmp(mode, "start")) return measure_starts(atoi(words[2]), words + 3), 0;
    int session_count = count == 6 && !strcmp(mode, "http") ? atoi(words[4]) : 1;
    int thread_count = session_count > 1 && atoi(words[5]) < session_count ? atoi(words[5]) : session_count;
    struct session *sessions = calloc(session_count, sizeof *sessions);
    for (int n = 0; n < session_count; n++) {
        if (count >= 3 && !strcmp(mode, "stdio")) open_stdio(&sessions[n], words + 2);
        else if (count == 6 && !strcmp(mode, "http")) open_http(&sessions[n], atoi(words[2]), words[3]);
        else if (count == 4 && !strcmp(mode, "sse")) open_sse(&sessions[n], atoi(words[2]), words[3]);
        else return fputs("wire start|stdio|http|sse: see the source\n", stderr), 2;
        initialize(&sessions[n]);
        notify(&sessions[n], "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    }
    printf("ready %d\n", sessions[0].server);
    fflush(stdout);
    struct reader commands = {0};
    char *line;
    while ((line = read_line(&commands))) obey(sessions, session_count, thread_count, line);
    if (sessions[0].server) close_stdio(&sessions[0]);
    return 0;
}
