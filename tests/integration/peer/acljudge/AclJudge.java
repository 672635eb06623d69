import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import kafka.security.authorizer.AclAuthorizer;
import kafka.utils.Json;
import kafka.zk.AclChangeNode;
import kafka.zk.ZkAclStore;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.network.ClientInformation;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.security.authorizer.AclEntry;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizationResult;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Asks Apache Kafka's AclAuthorizer, without a ZooKeeper: its cache is filled as its own listener fills it.
 *
 * Reads lines of words between tabs, and answers each question by a line with 1 (allowed) or 0:
 *
 *     new   super users   allow.everyone.if.no.acl.found          a new authorizer
 *     acls  type  pattern type  name  what the znode holds        a pattern's ACLs
 *     may   principal  address  operation  type  name             authorize
 *     any   principal  address  operation  type                   authorizeByResourceType
 *
 * and these by what Kafka would write, and where:
 *
 *     json    what the znode of a pattern's ACLs holds
 *     path    type  pattern type  name
 *     notice  type  pattern type  name
 */
public final class AclJudge {
    private static final RequestHeader HEADER = new RequestHeader(ApiKeys.METADATA, (short) 12, "judge", 1);
    private static AclAuthorizer authorizer;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "new" -> begin(words[1], Boolean.parseBoolean(words[2]));
                case "acls" -> put(words);
                case "may" -> out.println(may(words) ? 1 : 0);
                case "any" -> out.println(any(words) ? 1 : 0);
                case "json" -> out.println(Json.encodeAsString(AclEntry.toJsonCompatibleMap(entries(words[1]))));
                case "path" -> out.println(ZkAclStore.apply(pattern(words).patternType()).path(
                    pattern(words).resourceType(), words[3]));
                case "notice" -> out.println(notice(pattern(words)));
                default -> throw new IllegalArgumentException(line);
            }
        }
        out.flush();
    }

    private static void begin(String superUsers, boolean allowsEveryone) throws Exception {
        authorizer = new AclAuthorizer();
        Set<KafkaPrincipal> principals = new HashSet<>();
        for (String each : superUsers.isEmpty() ? new String[0] : superUsers.split(";")) {
            principals.add(SecurityUtils.parseKafkaPrincipal(each.trim()));
        }
        set("superUsers", CollectionConverters.asScala(principals).toSet());
        set("shouldAllowEveryoneIfNoAclIsFound", allowsEveryone);
    }

    private static void set(String name, Object value) throws Exception {
        Field field = AclAuthorizer.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(authorizer, value);
    }

    private static void put(String[] words) throws Exception {
        authorizer.updateCache(pattern(words), new AclAuthorizer.VersionedAcls(
            CollectionConverters.asScala(entries(words[4])).toSet(), 0));
    }

    private static ResourcePattern pattern(String[] words) {
        return new ResourcePattern(ResourceType.valueOf(words[1]), words[3], PatternType.valueOf(words[2]));
    }

    private static String notice(ResourcePattern pattern) {
        AclChangeNode node = ZkAclStore.apply(pattern.patternType()).changeStore().createChangeNode(pattern);
        return node.path() + "\t" + new String(node.bytes(), StandardCharsets.UTF_8);
    }

    private static Set<AclEntry> entries(String text) throws Exception {
        return AclEntry.fromBytes(text.getBytes(StandardCharsets.UTF_8));
    }

    private static boolean may(String[] words) throws Exception {
        ResourcePattern resource = new ResourcePattern(
            ResourceType.valueOf(words[4]), words[5], PatternType.LITERAL);
        Action action = new Action(AclOperation.valueOf(words[3]), resource, 1, true, true);
        return authorizer.authorize(context(words), List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static boolean any(String[] words) throws Exception {
        return authorizer.authorizeByResourceType(
            context(words), AclOperation.valueOf(words[3]), ResourceType.valueOf(words[4]))
            == AuthorizationResult.ALLOWED;
    }

    private static RequestContext context(String[] words) throws Exception {
        return new RequestContext(
            HEADER, "1", InetAddress.getByName(words[2]), SecurityUtils.parseKafkaPrincipal(words[1]),
            ListenerName.normalised("PLAINTEXT"), SecurityProtocol.PLAINTEXT, ClientInformation.EMPTY, false);
    }
}
