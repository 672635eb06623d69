// What Apache Kafka's ZkData says: first which paths are secured, with commas between; then what it
// creates a znode with: for each path on standard input a line with its
// entries, scheme:id:permissions with commas between.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.StringJoiner;
import kafka.zk.ZkData;
import org.apache.zookeeper.data.ACL;
import scala.collection.Iterator;

public class ZnodeAcls {
    public static void main(String[] arguments) throws Exception {
        System.out.println(ZkData.SecureRootPaths().mkString(","));
        BufferedReader paths = new BufferedReader(new InputStreamReader(System.in));
        for (String path = paths.readLine(); path != null; path = paths.readLine()) {
            StringJoiner entries = new StringJoiner(",");
            Iterator<ACL> acls = ZkData.defaultAcls(true, path).iterator();
            while (acls.hasNext()) {
                ACL acl = acls.next();
                entries.add(acl.getId().getScheme() + ":" + acl.getId().getId() + ":" + acl.getPerms());
            }
            System.out.println(entries);
        }
    }
}
